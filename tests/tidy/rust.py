"""Which modules of a Rust crate import which, read from its `use` declarations and paths."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import tree

USE = re.compile(r"\buse ((?:crate|super|self)\b[^;]*);")
PATH = re.compile(r"\b(?:crate|super)(?:::\w+)+")


def modules(source: Path) -> dict[str, set[str]]:
    """Top-level modules of the crate in folder `source` -> those that they import.

    Names of the crate's root that are no modules (re-exports) do not count, nor do tests.
    """
    files = [path for path in tree.tracked(".rs") if path.is_relative_to(source)]
    names = {_module(path.relative_to(source))[0] for path in files} - {"lib", "main"}
    found: dict[str, set[str]] = {name: set() for name in names}
    for path in files:
        module = _module(path.relative_to(source))
        if module[0] in names and not path.stem.endswith("_tests"):
            roots = {_resolve(name, module) for name in _names(tree.read(path))}
            found[module[0]] |= (roots & names) - {module[0]}
    return found


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, in order; empty if there is none."""
    done: set[str] = set()

    def walk(name: str, above: list[str]) -> list[str]:
        if name in above:
            return above[above.index(name) :]
        if name in done:
            return []
        for target in sorted(imports[name]):
            if found := walk(target, [*above, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(imports) if (found := walk(name, []))), [])


def _module(path: Path) -> list[str]:
    """The module of a file, as names from the crate's root."""
    parts = list(path.with_suffix("").parts)
    return parts[:-1] if parts[-1] == "mod" else parts


def _names(text: str) -> Iterator[str]:
    """Paths that begin with `crate` or `super`, without those of an inline module of tests."""
    text = re.sub(r"//.*", "", text).split("#[cfg(test)]\nmod tests {")[0]
    for tree_of_names in USE.findall(text):
        yield from _expand("", re.sub(r"\s+", "", re.sub(r"\sas\s+\w+", "", tree_of_names)))
    yield from PATH.findall(USE.sub("", text))


def _expand(prefix: str, names: str) -> Iterator[str]:
    """Paths of a use tree: `a::{b, c::d}` -> `a::b`, `a::c::d`."""
    head, brace, rest = names.partition("{")
    if not brace:
        yield prefix + head
        return
    depth, item = 0, ""
    for letter in rest.removesuffix("}") + ",":
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            yield from _expand(prefix + head, item)
            item = ""
        else:
            item += letter


def _resolve(name: str, module: list[str]) -> str:
    """The name at the crate's root that a path in `module` begins with; empty for the root."""
    parts = name.split("::")
    if parts[0] == "crate":
        return parts[1] if len(parts) > 1 else ""
    base = list(module)
    while parts and parts[0] in ("super", "self"):
        base = base[:-1] if parts[0] == "super" else base
        parts = parts[1:]
    return next(iter([*base, *parts]), "")

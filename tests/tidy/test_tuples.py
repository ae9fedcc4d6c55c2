"""No parameter is a tuple of unrelated values: a parameter structure has names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tree import read, tracked

PRODUCT = ("router/", "launcher/", "python/", "kernels/penstock_kernels/")
# Three values of one type are a vector, not unrelated values.
FEWEST = 3

# Known places, by file and function; none may be added.
ALLOWED = {
    # Python's `_attention` passes its tuple on: pyo3 takes its parts by position.
    ("python/src/cpu/attention.rs", "paged_attention"),
    ("python/penstock/cpu/ops.py", "_attention"),
    ("python/src/engine.rs", "start"),
    ("kernels/penstock_kernels/linear/cases.py", "_made"),
}


def _product(path: Path) -> bool:
    parts = set(path.parts)
    return path.as_posix().startswith(PRODUCT) and not parts & {"tests", "benches", "examples"}


def _split(text: str) -> list[str]:
    """Splits at the commas that are not within brackets."""
    parts, depth = [""], 0
    for at, char in enumerate(text):
        arrow = char == ">" and text[at - 1 : at] in ("-", "=")
        depth += (char in "([{<") - (char in ")]}>" and not arrow)
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]


def _closing(text: str, start: int) -> int:
    """Returns the index of the bracket that closes the one at `start`."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at
    return len(text)


def _parameters(text: str, start: int) -> int:
    """Returns the index of a function's opening parenthesis; `start`: that, or of its generics."""
    depth = 0
    for at in range(start, len(text)):
        if text[at] == "(" and depth == 0:
            return at
        depth += (text[at] == "<") - (text[at] == ">" and text[at - 1] not in "-=")
    return len(text) - 1


def _unrelated(types: list[str]) -> bool:
    return len(types) >= FEWEST and len(set(types)) > 1


def rust_tuples(source: str) -> list[str]:
    """Returns the functions that take a tuple of unrelated values."""
    code = re.sub(r"//[^\n]*", "", source.split("\n#[cfg(test)]\nmod ")[0])
    found = []
    for match in re.finditer(r"\bfn (\w+)[<(]", code):
        start = _parameters(code, match.end() - 1)
        for parameter in _split(code[start + 1 : _closing(code, start)]):
            typed = re.search(r":\s*&?(?:'\w+ )?(?:mut )?\((.*)\)$", parameter, re.DOTALL)
            if typed and _unrelated(_split(typed.group(1))):
                found.append(match.group(1))
    return found


def python_tuples(source: str) -> list[str]:
    """Returns the functions that take a tuple of unrelated values."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            for kind in (a.annotation for a in arguments):
                if not isinstance(kind, ast.Subscript) or ast.unparse(kind.value) != "tuple":
                    continue
                values = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else []
                if _unrelated([ast.unparse(value) for value in values]):
                    found.append(node.name)
    return found


def _places(suffix: str) -> list[tuple[str, str]]:
    find = rust_tuples if suffix == ".rs" else python_tuples
    paths = [path for path in tracked(suffix) if _product(path)]
    return [(path.as_posix(), name) for path in paths for name in find(read(path))]


@pytest.mark.parametrize("suffix", [".rs", ".py"])
def test_no_parameter_is_a_tuple_of_unrelated_values(suffix: str) -> None:
    places = [place for place in _places(suffix) if place not in ALLOWED]
    assert places == []


def test_allowed_places_exist() -> None:
    assert set(_places(".rs") + _places(".py")) >= ALLOWED


def test_tuples_are_found() -> None:
    rust = (
        "fn f<T: Fn(u8) -> u8>(a: u8, (b, c, d): (u8, T, Vec<(u8, u8)>)) {}\n"
        "fn g(a: &(u8, u8, u8)) {}"
    )
    assert rust_tuples(rust) == ["f"]
    assert rust_tuples("fn f(a: u8, (b, c): (u8, u16)) {}") == []
    python = (
        "def f(a: tuple[int, str, float]): ...\n"
        "def g(a: tuple[int, int, int], b: tuple[int, ...]): ..."
    )
    assert python_tuples(python) == ["f"]

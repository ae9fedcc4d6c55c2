"""The project's files and what Python says about itself: shared by the tidy tests."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = (
    "router/engine/src/generated/",
    "router/http/src/kserve/generated/",
    "python/penstock/rpc/",
)


@dataclass(frozen=True)
class Function:
    """One Python function: where it is, its lines and its arguments without self and cls."""

    path: Path
    name: str
    lines: int
    arguments: int


@lru_cache
def tracked(suffix: str = "") -> list[Path]:
    """Files that git tracks, hand-written ones only, relative to the root."""
    out = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return [
        Path(name)
        for name in out.split("\0")
        if name.endswith(suffix) and name and not name.startswith(GENERATED)
        if (ROOT / name).is_file() and not (ROOT / name).is_symlink()
    ]


def read(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def functions(path: Path) -> list[Function]:
    found = []
    for node in ast.walk(ast.parse(read(path))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            given = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            names = [a.arg for a in given if a.arg not in ("self", "cls")]
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            found.append(Function(path, node.name, lines, len(names)))
    return found


def imports(path: Path) -> set[str]:
    """Absolute names of the modules that a Python file imports, wherever in it."""
    package = ".".join(path.with_suffix("").parts[1:-1])
    names = set()
    for node in ast.walk(ast.parse(read(path))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                parts = parts[: len(parts) - node.level + 1]
                base = ".".join([*parts, *([base] if base else [])])
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return names

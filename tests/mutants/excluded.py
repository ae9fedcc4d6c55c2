"""What runs on a GPU alone, so that no test on a CPU can notice a change of it."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

from changes import Mutant

Place = tuple[int, int]  # line, column
GPU = "runs on a GPU alone"
FUNCTIONS = {
    "graphs.py: DeviceCapture.__init__": GPU,
    "graphs.py: DeviceCapture.takes": GPU,
    "graphs.py: DeviceCapture.__call__": GPU,
    "memory.py: measure_activations": GPU,
    "cuda_context.py: _retain_context": "calls CUDA's driver",
}
# Conditions that hold on a GPU alone: of a device, or of an event of a stream.
ON_GPU = re.compile(r"== 'cuda'|\b_?(begin|end|event|zero_event) is not None")
ON_CPU = re.compile(r"^[\w.]+\.type == 'cpu'$")


def excluded(root: Path, mutant: Mutant) -> str | None:
    """Why this change is left out, or None."""
    place = mutant.first, mutant.column
    if any(first <= place < last for first, last in _branches(root / mutant.path)):
        return GPU
    return FUNCTIONS.get(f"{Path(mutant.path).name}: {mutant.function}")


@lru_cache
def _branches(path: Path) -> list[tuple[Place, Place]]:
    """Where code that runs on a GPU alone begins and ends."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If) and ON_GPU.search(ast.unparse(node.test)):
            found.append(_places(node.body[0], node.body[-1]))
        elif isinstance(node, ast.IfExp) and ON_GPU.search(ast.unparse(node.test)):
            found.append(_places(node.body, node.body))
        elif isinstance(node, ast.FunctionDef):
            for at, statement in enumerate(node.body[:-1]):
                if _returns_on_cpu(statement):
                    found.append(_places(node.body[at + 1], node))
    return found


def _places(first: ast.expr | ast.stmt, last: ast.expr | ast.stmt) -> tuple[Place, Place]:
    return (first.lineno, first.col_offset), (last.end_lineno or 0, last.end_col_offset or 0)


def _returns_on_cpu(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.If) or not isinstance(statement.body[-1], ast.Return):
        return False
    return ON_CPU.match(ast.unparse(statement.test)) is not None

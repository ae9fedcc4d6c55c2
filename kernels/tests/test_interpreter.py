"""Runs the kernels of the small cases in Triton's interpreter.

The interpreter is chosen when Triton is first imported, so it has processes of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
OPS = "test_kernel_in_the_interpreter"
# Tests and their files. No part may come near the time limit.
PARTS = {
    "attention": (f"{OPS} and attention", ["test_ops.py"]),
    "other ops": (f"{OPS} and not attention", ["test_ops.py"]),
    "lists and sorts": (
        "test_lists or test_sorted_choices_in",
        ["test_lists.py", "test_expert_sort.py"],
    ),
    "splits and parts": (
        "test_more_splits or test_parts_of",
        ["test_many_splits.py", "test_index_parts.py"],
    ),
    "rows of float8": ("test_rows_are", ["test_float8.py"]),
}


@pytest.mark.parametrize("part", PARTS)
def test_kernels_in_tritons_interpreter(part: str) -> None:
    names, files = PARTS[part]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-k", names, *(str(HERE / name) for name in files)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout, done.stdout

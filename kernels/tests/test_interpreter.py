"""Runs the kernels of the small cases in Triton's interpreter.

The interpreter is chosen when Triton is first imported, so it has a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_kernels_in_tritons_interpreter() -> None:
    names = (
        "test_kernel_in_the_interpreter or test_lists or test_more_splits or test_sorted_choices_in"
        " or test_rows_are"
    )
    tests = [
        str(Path(__file__).parent / name)
        for name in (
            "test_ops.py",
            "test_lists.py",
            "test_many_splits.py",
            "test_expert_sort.py",
            "test_float8.py",
        )
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-k", names, *tests],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout, done.stdout

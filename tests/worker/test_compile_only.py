"""Layers whose kernels are compiled, not launched, as in a GPU's warm-up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("compile_only.py")
CASES = ["llama31", "phimoe", "hy-v4", "deepseek-v4", "glm5_next", "qwen4_exp", "kimi_linear"]
CASES += [
    "dots3-note",
    "inkling",
    "inkling2",
    "minimax_m3_vl",
    "recurrent_gemma",
    "zamba",
    "zamba2",
    "zaya",
]


def test_no_layer_takes_what_a_kernel_writes_for_a_place() -> None:
    """In a process of its own, because it replaces Triton's driver."""
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *CASES],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == CASES

"""Portable kernels compile for GPUs that are not here, in processes that pretend to have one."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(platform.machine() != "x86_64", reason="Triton's assembler is for x86")
@pytest.mark.parametrize(
    ("gpu", "kernels"),
    # An A100 has no conversion to fp8 e4m3. test_compiled_hopper.py compiles for an H100, which has
    # the same limits as a B200.
    [
        ("80 108 166912", 259),
        ("89 58 101376", 417),
        ("100 148 232448", 423),
    ],
)
def test_portable_kernels_fit_gpus(gpu: str, kernels: int) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compile_portable.py")), *gpu.split()],
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count(": compiled") == kernels, done.stdout

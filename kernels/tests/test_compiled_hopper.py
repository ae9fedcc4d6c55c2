"""Kernels for Hopper GPUs compile in a process that pretends to have one."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(platform.machine() != "x86_64", reason="Triton's assembler is for x86")
def test_kernels_for_hopper_compile() -> None:
    # Versions before 3.6 lack what is imported: there the portable kernels are used.
    pytest.importorskip("penstock_kernels.paged_decode_attention.hopper", exc_type=ImportError)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compile_hopper.py"))],
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count(": compiled") == 137, done.stdout

"""Sums over ranks on real GPUs; kernels/tests/test_peer_sum.py has them without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from penstock import parallel


def test_unbuildable_kernels_fall_back_to_nccl(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def probe(_: torch.device) -> None:
        raise ImportError("no Triton here")

    monkeypatch.setattr(parallel, "probe", probe)
    group = parallel.Group()
    group._meet_peers(torch.device("cpu"))
    assert group.peers is None
    assert "each sum waits for NCCL: no Triton here" in caplog.text


@pytest.mark.gpu
def test_all_reduce_over_gpus() -> None:
    """Right and equal on all ranks: uneven shapes, many in a row in a graph, changing values."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    ranks = "2" if torch.cuda.device_count() < 4 else "4"
    script = Path(__file__).parent / "peer_sums.py"
    done = subprocess.run(
        [sys.executable, str(script), ranks],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]

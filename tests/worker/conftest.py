"""Lets these tests import their helpers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "kernels/tests")]


@pytest.fixture(autouse=True)
def _no_late_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine any mask may be late: only tests that are about that have late ones."""
    monkeypatch.setattr("penstock.worker.guiding.LEAST", 120.0)

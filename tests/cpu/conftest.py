"""The kernels' tests compare ops; the CPU backend is compared by the same functions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "kernels/tests"))


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    """Kernels share their work among threads, on a machine with one core too."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)

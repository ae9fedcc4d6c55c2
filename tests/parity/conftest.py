"""Checkpoints are made once a session."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "worker"))

import checkpoints


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Path of a tiny checkpoint by the name of its case."""
    directory = tmp_path_factory.mktemp("checkpoints")
    return lru_cache(lambda case: checkpoints.make(directory, case))

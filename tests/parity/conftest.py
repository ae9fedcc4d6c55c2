"""Checkpoints are made once a session; the worker's test helpers are these tests' too."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "worker")]

from checkpoints import checkpoint_maker  # noqa: E402


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Path of a tiny checkpoint by the name of its case."""
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))

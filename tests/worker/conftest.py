"""Lets these tests import their helpers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "kernels/tests")]


from driver import ROOT, Driver  # noqa: E402
from local import LocalWorker  # noqa: E402
from penstock.rpc import shard_pb2 as pb  # noqa: E402


@pytest.fixture(scope="module")
def loaded() -> Iterator[tuple[LocalWorker, pb.Loaded]]:
    """A worker with brook, and what it declared. Modules with other models override it."""
    worker = LocalWorker()
    yield worker, worker.load(ROOT / "python/penstock/brook")
    assert worker.shard.grammar_cache is not None
    worker.shard.grammar_cache.close()


@pytest.fixture
def driver(loaded: tuple[LocalWorker, pb.Loaded]) -> Iterator[Driver]:
    """Sends steps to the module's worker, in an epoch of its own."""
    worker, limits = loaded
    driver = Driver([worker], limits, worker.stub.Health(pb.HealthRequest()).epoch + 1)
    yield driver
    driver.stream.close()


@pytest.fixture(autouse=True)
def _no_late_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine any mask may be late: only tests that are about that have late ones."""
    monkeypatch.setattr("penstock.worker.grammar_masks.LEAST", 120.0)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of texts for `penstock quantize`."""
    file = tmp_path_factory.mktemp("texts") / "texts.txt"
    lines = (f"The fox number {n} sees {n * 7} owls at the brook." for n in range(24))
    file.write_text("\n".join(lines))
    return file

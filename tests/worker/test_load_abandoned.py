"""A Load whose client leaves ends, and the worker takes the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from checkpoints import checkpoint_maker
from driver import SETTINGS
from local import Context, LocalWorker, Refused
from penstock.rpc import shard_pb2 as pb
from penstock.worker import service
from penstock.worker.startup import loader

Progress = Callable[[str, int, int], None]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))("llama2")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Loads report once, and then wait for this."""
    opened = threading.Event()
    load = loader.load

    def slow(settings: Any, progress: Progress, compilers: object) -> Any:
        assert compilers is None  # of the CPU
        progress("weights", 0, 1)
        assert opened.wait(60)
        return load(settings, progress)

    monkeypatch.setattr(loader, "load", slow)
    return opened


def request(model: Path) -> pb.LoadRequest:
    return pb.LoadRequest(**{**SETTINGS, "model_path": str(model)})


def test_load_ends_when_its_client_disconnects_and_another_succeeds(
    model: Path, gate: threading.Event
) -> None:
    worker, context = LocalWorker(), Context()
    events = worker.shard.Load(request(model), context)
    assert next(events).progress.phase == "weights"
    context.leave()
    gate.set()
    with pytest.raises(Refused) as refused:
        list(events)
    assert refused.value.code == grpc.StatusCode.CANCELLED
    assert not worker.shard.Health(pb.HealthRequest(), Context()).loaded
    assert worker.load(model).vocab_size == 501


def test_dropped_load_iterator_ends_the_load(model: Path, gate: threading.Event) -> None:
    worker = LocalWorker()
    events = worker.shard.Load(request(model), Context())
    next(events)
    threading.Timer(0.1, gate.set).start()
    events.close()
    assert gate.is_set()  # it waited for the load, whose thread is free now
    assert worker.load(model).vocab_size == 501


def test_load_is_refused_until_an_abandoned_one_ends(
    model: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "ACQUIRE_SECONDS", 0.05)
    worker, context = LocalWorker(), Context()
    events = worker.shard.Load(request(model), context)
    next(events)
    context.leave()
    with pytest.raises(Refused) as refused:
        worker.load(model)
    assert "another Load" in refused.value.text
    gate.set()
    with pytest.raises(Refused):
        list(events)

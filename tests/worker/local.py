"""A worker inside the test's process: the service itself, without its transport.

Quick to start, and its model can be looked at. Same interface as driver.Worker.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import grpc
from driver import SETTINGS, Driver, Running, chunked_hit_and_preempted, greedy
from penstock.rpc import shard_pb2 as pb
from penstock.worker.service import ShardService


class Refused(Exception):
    """What a client would see as a status."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(f"{code.name}: {text}")
        self.code, self.text = code, text


class Context:
    """As much of a servicer's context as the service uses. `leave` is what a client does."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self._callbacks.append(callback)
        return True

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def leave(self) -> None:
        for callback in self._callbacks:
            callback()

    def abort(self, code: grpc.StatusCode, text: str) -> NoReturn:
        raise Refused(code, text)


class Stub:
    """The client's side of the service's methods."""

    def __init__(self, shard: ShardService) -> None:
        self._shard = shard

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._shard, name)
        return lambda request: method(request, Context())


class LocalWorker:
    """A Shard and a client of it."""

    def __init__(self) -> None:
        self.shard = ShardService(0, lambda: None)
        self.stub = Stub(self.shard)

    def load(self, model: Path | str, **settings: Any) -> pb.Loaded:
        """Loads and returns what the worker can do; raises Refused."""
        request = pb.LoadRequest(**{**SETTINGS, "model_path": str(model), **settings})
        return list(self.stub.Load(request))[-1].loaded

    @property
    def runner(self) -> Any:
        assert self.shard.pipeline is not None
        return self.shard.pipeline.runner

    def record_logits(self) -> list[Any]:
        """Logits of all runs that yield from now on, in order of their computation.

        Steps are launched kernel by kernel: what a graph computes, nobody can look into.
        """
        runner, seen, rows = self.runner, [], []
        forward, pack = runner.forward, runner.packer.pack
        runner.graphs = None

        def note(*args: Any) -> Any:
            packed = pack(*args)
            rows[:] = packed.samples.tolist()
            return packed

        def record(*args: Any) -> Any:
            logits = forward(*args)
            seen.append(logits[rows].clone())
            return logits

        runner.packer.pack, runner.forward = note, record
        return seen


class Runs(NamedTuple):
    """Greedy sequences after one prompt, of one worker."""

    alone: Running  # from the whole prompt in one step
    logits: list[Any]  # of each of its steps, [1, vocab]
    chunked: Running
    preempted: Running  # begins with a prefix hit

    def tokens(self) -> list[int]:
        """Of the sequence that was alone; the others', which must have the same, are as many or
        fewer."""
        for sequence in (self.chunked, self.preempted):
            assert sequence.tokens == self.alone.tokens[: sequence.wanted]
        return self.alone.tokens


def every_run(path: Path, ids: list[int], wanted: int = 24, dtype: str = "float64") -> Runs:
    """Loads a checkpoint once, and runs a prompt of 90 tokens alone, in chunks, and on top of a
    prefix hit with a preemption. `wanted`: tokens of the sequence that is alone, at least 24, which
    the others have."""
    worker, alone = LocalWorker(), greedy(ids, wanted)
    driver = Driver([worker], worker.load(path, dtype=dtype))
    logits = worker.record_logits()
    driver.enter(alone)
    driver.finish([alone])
    of_alone = list(logits)
    return Runs(alone, of_alone, *chunked_hit_and_preempted(driver, ids, wanted=24, before=9))

"""A step stream ends with a status that says why, whatever goes wrong; nobody waits for ever."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from threading import Event, Thread
from threading import enumerate as enumerate_threads
from typing import Any

import grpc
import pytest
from checkpoints import checkpoint_maker, prompt
from driver import Driver, Running, Stream, greedy
from local import LocalWorker, Refused
from penstock.rpc import shard_pb2 as pb
from penstock.worker.protocol import messages
from penstock.worker.run.pipeline import REQUESTS_WAITING, Channel, ChannelClosed
from penstock.worker.run.runner import Pending


class Panic(BaseException):
    """What a panic of the extension is: no Exception."""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> LocalWorker:
    worker = LocalWorker()
    model = checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))("llama2")
    worker.limits = worker.load(model)  # type: ignore[attr-defined]
    return worker


def opened(worker: LocalWorker) -> Stream:
    return Stream([worker], worker.stub.Health(pb.HealthRequest()).epoch + 1)  # type: ignore


def reopened(worker: LocalWorker) -> Stream:
    """A new stream of the epoch that was."""
    stream = opened(worker)
    stream.epoch -= 1
    worker.shard.epoch -= 1
    return stream


def end(stream: Stream) -> Refused:
    try:
        with pytest.raises(Refused) as refused:
            stream.receive()
    finally:
        stream.queues[0].put(None)  # a stream that goes on would hold up the tests that follow
    return refused.value


def works(worker: LocalWorker, sequence: Running | None = None) -> None:
    """The next epoch runs as if nothing had been."""
    driver = Driver([worker], worker.limits, worker.shard.epoch + 1)  # type: ignore
    sequence = sequence or greedy(prompt(9), 3)
    driver.enter(sequence)
    driver.finish([sequence])
    assert sequence.error is None
    driver.stream.close()


@pytest.mark.parametrize("error", [Panic("index out of bounds"), ValueError("wrong")])
def test_failed_launch_ends_the_stream(
    worker: LocalWorker, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(worker.runner.packer, "pack", fail)
        stream = opened(worker)
        stream.send()
        status = end(stream)
    assert status.code == grpc.StatusCode.INTERNAL and str(error) in status.text
    # What was half done is not gone on with, be it by the step that is due or by the same again.
    for step in (1, 0):
        stream = reopened(worker)
        stream.step = step
        stream.send()
        assert "ended with a failed step; Reset to a newer one" in end(stream).text
    works(worker)


def test_failed_device_launch_breaks_the_epoch(
    worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later than the fold: what the slots hold no longer fits what the device holds."""
    driver = Driver([worker], worker.limits, worker.shard.epoch + 1)  # type: ignore
    sequence = greedy(prompt(9), 3)
    driver.enter(sequence)
    driver.step([sequence])

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(worker.runner, "_run", fail)
        driver.stream.send(run_slots=[sequence.slot], run_tokens=[1])
        assert "out of memory" in end(driver.stream).text
    assert worker.shard.pipeline is not None and worker.shard.pipeline.device_works()
    stream = reopened(worker)
    stream.step = 2
    stream.send(run_slots=[sequence.slot], run_tokens=[1])
    assert "ended with a failed step" in end(stream).text
    works(worker)


def test_a_refused_step_changes_nothing(worker: LocalWorker) -> None:
    """The same epoch goes on with the step that was due."""
    whole = greedy(prompt(9), 3)
    works(worker, whole)
    driver = Driver([worker], worker.limits, worker.shard.epoch + 1)  # type: ignore
    sequence = greedy(prompt(9), 3)
    driver.enter(sequence)
    driver.step([sequence])
    driver.stream.send(run_slots=[sequence.slot, sequence.slot], run_tokens=[1, 1])
    assert "names a slot twice" in end(driver.stream).text
    driver.stream = reopened(worker)
    driver.stream.step = 1
    driver.finish([sequence])
    driver.stream.close()
    assert sequence.error is None and sequence.tokens == whole.tokens


@pytest.mark.parametrize("error", [Panic("no such state"), KeyError("lost")])
def test_unreadable_request_ends_the_stream(
    worker: LocalWorker, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(messages, "to_sampling", fail)
        stream = opened(worker)
        stream.send(new=[pb.NewSequence(slot=0, token_ids=[1, 2])])
        status = end(stream)
    assert status.code == grpc.StatusCode.INTERNAL and str(error) in status.text
    works(worker)


@pytest.mark.timeout(60)
def test_failed_reply_ends_the_stream_at_once(
    worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status comes at once: the client waits for the reply, and asks for nothing before it."""

    def fail(_: Pending) -> None:
        raise RuntimeError("the device is lost")

    with monkeypatch.context() as patch:
        patch.setattr(Pending, "wait", fail)
        stream = opened(worker)
        stream.send()
        status = end(stream)
    assert status.code == grpc.StatusCode.INTERNAL and "the device is lost" in status.text
    works(worker)


def test_channel_capacity_is_bounded() -> None:
    channel: Channel[int] = Channel(2)
    put = list[int]()

    def write() -> None:
        for number in range(4):
            channel.put(number)
            put.append(number)
        channel.end()

    writer = Thread(target=write, daemon=True)
    writer.start()
    writer.join(0.2)
    assert writer.is_alive() and put == [0, 1]
    assert [channel.get() for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ChannelClosed):
        channel.get()
    writer.join(60)
    assert not writer.is_alive()
    with pytest.raises(queue.Empty):
        channel.get(0.01)


def test_channel_can_be_cut_and_closed() -> None:
    channel: Channel[int] = Channel(1)
    channel.put(1)
    channel.cut()  # though it is full
    assert channel.get() == 1
    with pytest.raises(ChannelClosed):
        channel.get()
    channel.close()
    with pytest.raises(ChannelClosed):
        channel.put(2)
    channel.end()  # nobody is left to be told
    with pytest.raises(queue.Empty):
        channel.get(0.01)


def test_requests_after_a_failure_block_no_thread(worker: LocalWorker) -> None:
    """More than wait at once: who reads them ends."""
    before = enumerate_threads()
    stream = opened(worker)
    stream.step = 5  # not the one that is due
    for _ in range(3 * REQUESTS_WAITING):
        stream.send()
    assert "step 5 of epoch" in end(stream).text
    readers = [t for t in enumerate_threads() if t.name == "receive" and t not in before]
    for thread in readers:
        thread.join(10)
    assert not any(thread.is_alive() for thread in readers)


def test_steps_are_counted(worker: LocalWorker) -> None:
    before = worker.stub.Health(pb.HealthRequest()).steps
    works(worker, greedy(prompt(9), 3))
    assert worker.stub.Health(pb.HealthRequest()).steps == before + 3


def test_failed_idle_work_is_abandoned(
    worker: LocalWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """No stream ends for it."""
    begun = Event()

    def pieces() -> Iterator[None]:
        begun.set()
        raise ValueError
        yield

    assert worker.shard.pipeline is not None
    worker.runner.spare_work, worker.shard.pipeline.spare_work = pieces(), True
    driver = Driver([worker], worker.limits, worker.shard.epoch + 1)  # type: ignore
    sequence = greedy(prompt(9), 3)
    driver.enter(sequence)
    driver.step([sequence])
    assert begun.wait(60)
    driver.finish([sequence])
    driver.stream.close()
    assert sequence.error is None and len(sequence.tokens) == 3
    assert "a graph capture failed; no further graphs are captured" in caplog.text


def test_out_of_range_slot_ends_the_stream(worker: LocalWorker) -> None:
    stream = opened(worker)
    stream.send(run_slots=[2**32 - 1], run_tokens=[1])
    assert "4294967295" in end(stream).text
    works(worker)


def test_stream_ends_with_an_idle_device(
    worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the next one would write to host buffers that launched steps have yet to read."""

    class Event:
        def __init__(self) -> None:
            self.pending = False

        def record(self) -> None:
            self.pending = True

        def query(self) -> bool:
            return not self.pending

        def synchronize(self) -> None:
            for host in ring[ring.index(next(h for h in ring if h.end is self)) :: -1]:
                host.end.pending = False

    ring = worker.runner.ring
    for host in ring:
        monkeypatch.setattr(host, "end", Event())
    worker.runner.launched = 0
    stream = opened(worker)
    for _ in range(3):
        stream.send()
    stream.receive()
    stream.queues[0].put(None)
    stream.replies[0].close()  # its client leaves
    assert worker.runner.launched == 3
    assert not any(host.end.pending for host in ring)

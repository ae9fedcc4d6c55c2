"""Three threads for steps: receive, launch, reply.

    request stream --receive--> inbox --launch--> outbox --reply--> reply stream

The launch of step N + 1 waits for the tokens of step N only if step N + 1 has grammar masks, which
depend on them. All device work, loading included, runs on the launch thread, because device and
thread-pool settings are per thread.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Generic, TypeVar

import grpc
import torch

from penstock.worker.protocol.step import Outcome, Step
from penstock.worker.run.runner import REPLIES_WAITING, Pending, Runner
from penstock.worker.run.trace import Trace

log = logging.getLogger("penstock.worker")

T = TypeVar("T")
REQUESTS_WAITING = 16
POLL_SECONDS = 0.2
QUIET_SECONDS = 0.05  # without a request or a step on the device, before spare work is begun
NONE_LEFT = object()


class ChannelClosed(Exception):
    """The other end of a channel is gone."""


class Channel(Generic[T]):
    """A bounded queue between two threads, made of two SimpleQueues: one for the items, one for the
    free places. It hands items over in half the time that a Queue takes."""

    def __init__(self, size: int) -> None:
        self._items: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._places: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(size):
            self._places.put(None)
        self._closed = threading.Event()

    def put(self, item: T) -> None:
        """Waits for room. Raises ChannelClosed if the reader is gone."""
        self._put(item)

    def end(self) -> None:
        """Ends the channel for the writer: the reader gets the remaining items, then
        ChannelClosed."""
        with contextlib.suppress(ChannelClosed):
            self._put(None)

    def get(self, seconds: float | None = None) -> T:
        """Waits for an item, at most `seconds`. Raises ChannelClosed at the end, queue.Empty at the
        timeout."""
        item = self._items.get(timeout=seconds)
        self._places.put(None)
        if item is None:
            raise ChannelClosed
        return item

    def cut(self) -> None:
        """Ends the channel as `end` does, also while the reader waits. Does not block."""
        self._items.put(None)

    def close(self) -> None:
        """Ends the channel for the reader: writers get ChannelClosed from now on."""
        self._closed.set()

    def _put(self, item: T | None) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Empty):
                self._places.get(timeout=POLL_SECONDS)
                return self._items.put(item)
        raise ChannelClosed


Inbox = Channel[Step | Exception]
Outbox = Channel[Pending | Exception]


class LaunchThread:
    """The one thread that touches the device."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="launch", daemon=True).start()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Runs `job` after all jobs that were submitted earlier."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(_plain(error))

        self._jobs.put(run)
        return future

    def _serve(self) -> None:
        with torch.inference_mode():
            while True:
                self._jobs.get()()


class Pipeline:
    """Steps of one stream at a time through one runner."""

    def __init__(self, runner: Runner, thread: LaunchThread, trace: Trace | None = None) -> None:
        self.runner = runner
        self.thread = thread
        self.trace = trace
        self.steps = 0  # completed since Load
        self.spare_work = True  # whether the runner may have some left

    def run(self, requests: Iterator[Step]) -> Iterator[Outcome]:
        """Yields outcomes in the order of requests. Raises the exception of a launch."""
        inbox: Inbox = Channel(REQUESTS_WAITING)
        outbox: Outbox = Channel(REPLIES_WAITING)
        receive = (requests, inbox)
        threading.Thread(target=_receive, args=receive, name="receive", daemon=True).start()
        launch = self.thread.submit(lambda: self._launch(inbox, outbox))
        try:
            yield from self._reply(outbox)
        except Exception:
            inbox.cut()  # the client may wait for this reply before it sends the next request
            raise
        finally:
            outbox.close()
            try:
                launch.result()
            finally:
                inbox.close()

    def device_works(self) -> bool:
        """Returns whether the device is usable after a failed step. Some errors of CUDA make every
        later call fail. Call it only while no stream runs."""
        device = self.runner.rank_model.device

        def check() -> None:
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        return self.thread.submit(check).exception() is None

    def _launch(self, inbox: Inbox, outbox: Outbox) -> None:
        """Launches steps until the requests end. If the client has left, the remaining steps still
        run, because all ranks of a group must run the same steps. Waits for the last step, so that
        the next stream finds the device idle and all host buffers free."""
        pending: Pending | None = None
        with contextlib.suppress(ChannelClosed):
            try:
                while True:
                    item = self._next(inbox, pending)
                    if isinstance(item, Exception):
                        raise item
                    pending = self.runner.launch(item)
                    try:
                        outbox.put(pending)
                    except ChannelClosed:
                        pending.arrive()
            except ChannelClosed:
                outbox.end()
            except BaseException as error:
                outbox.put(_plain(error))
        if pending is not None:
            pending.arrive()

    def _next(self, inbox: Inbox, before: Pending | None) -> Step | Exception:
        """Returns the next request. While none arrives and the device is idle, the runner does
        spare work, such as captures, piece by piece."""
        while True:
            idle = self.spare_work and (before is None or before.arrived())
            try:
                return inbox.get(QUIET_SECONDS if self.spare_work else None)
            except queue.Empty:
                if idle:
                    self.spare_work = self._work_spare()

    def _work_spare(self) -> bool:
        """Does a piece of spare work and returns whether more may be left. After a failure none is
        left, and running streams continue."""
        try:
            return next(self.runner.spare_work, NONE_LEFT) is not NONE_LEFT
        except Exception:
            log.warning("a graph capture failed; no further graphs are captured", exc_info=True)
            return False

    def _reply(self, outbox: Outbox) -> Iterator[Outcome]:
        while True:
            try:
                item = outbox.get()
            except ChannelClosed:
                return
            if isinstance(item, Exception):
                raise item
            outcome = item.wait()
            self.steps += 1
            if self.trace is not None:
                self.trace.add(item)
            yield outcome


def _receive(requests: Iterator[Step], inbox: Inbox) -> None:
    try:
        for step in requests:
            inbox.put(step)
    except ChannelClosed:
        pass
    except grpc.RpcError:
        log.debug("the client of the step stream has left")
    except BaseException as error:  # of a request that is not what the protocol says, or our own
        with contextlib.suppress(ChannelClosed):
            inbox.put(_plain(error))
    finally:
        inbox.end()


def _plain(error: BaseException) -> Exception:
    """Returns the error as an Exception; a panic of the extension is only a BaseException."""
    if isinstance(error, Exception):
        return error
    wrapped = RuntimeError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped

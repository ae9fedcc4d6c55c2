"""The gRPC service of a worker (`Shard` in the protocol)."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from penstock.faults import (
    BadModel,
    BadSetting,
    BadStep,
    Fault,
    LoadCancelled,
    TooLittleMemory,
    Unsupported,
)
from penstock.grammar import GrammarRejected
from penstock.grammar.fair_queue import Caller, CompilationCancelled
from penstock.rpc import shard_pb2 as pb
from penstock.rpc import shard_pb2_grpc as rpc
from penstock.worker.lease import HANDOVER_SECONDS, Lease
from penstock.worker.protocol.messages import (
    from_loaded,
    from_outcome,
    to_grammar_spec,
    to_sampling,
    to_settings,
    to_step,
)
from penstock.worker.protocol.sampling_params import sampling_error
from penstock.worker.startup.compilers import begin_compilers
from penstock.worker.startup.cuda_context import begin_cuda_context

if TYPE_CHECKING:
    from penstock.grammar.cache import GrammarCache
    from penstock.worker.run.pipeline import LaunchThread, Pipeline

PROTOCOL_VERSION = 1
NO_MODEL = "no model is loaded; call Load first"
CLIENT = "penstock-client"  # metadata of Prepare
ACQUIRE_SECONDS = 10  # a stream that its client has left may still be ending
# Settings of Load in which 0 leaves the choice to the worker.
CHOSEN = {"max_slots", "max_step_tokens", "kv_memory_bytes", "block_tokens", "threads"}
CODES: dict[type[Exception], grpc.StatusCode] = {
    BadSetting: grpc.StatusCode.INVALID_ARGUMENT,
    BadModel: grpc.StatusCode.FAILED_PRECONDITION,
    Unsupported: grpc.StatusCode.FAILED_PRECONDITION,
    BadStep: grpc.StatusCode.FAILED_PRECONDITION,
    TooLittleMemory: grpc.StatusCode.RESOURCE_EXHAUSTED,
    LoadCancelled: grpc.StatusCode.CANCELLED,
    CompilationCancelled: grpc.StatusCode.CANCELLED,
}
log = logging.getLogger("penstock.worker")
Context = grpc.ServicerContext


class ShardService(rpc.ShardServicer):
    """The worker's side of the protocol. The first Load imports torch."""

    def __init__(
        self,
        rank: int,
        stop: Callable[[], None],
        trace_file: Path | None = None,
        lease: Lease | None = None,
    ) -> None:
        self.rank = rank
        self.stop = stop
        self.lease = lease or Lease(stop)
        self.trace_file = trace_file
        self.thread: LaunchThread | None = None
        self.pipeline: Pipeline | None = None
        self.load: tuple[pb.LoadRequest, pb.LoadProgress] | None = None  # asked, answered
        self.vocab = 0
        self.grammar_cache: GrammarCache | None = None  # of grammars
        self.epoch = 0
        self.busy = threading.Lock()  # held by the Load or the Step stream that runs

    def Load(self, request: pb.LoadRequest, context: Context) -> Iterator[pb.LoadProgress]:
        """Streams progress, then Loaded; only Loaded if an equal request has loaded the model
        before."""
        self._acquire(context)
        try:
            self._check_load(request)
            self._hold_lease(context, HANDOVER_SECONDS)
            if self.load is None:
                yield from self._load(request, context)
            else:
                self.lease.keep(request.keep_seconds)
                yield self.load[1]
        except Exception as error:
            _abort(context, error)
        finally:
            self.busy.release()

    def _check_load(self, request: pb.LoadRequest) -> None:
        if self.load is not None and (differing := _differing(self.load[0], request)):
            raise BadSetting(
                f"a model is loaded already, with other settings: {differing}; use the same "
                f"settings, or start a new worker"
            )
        if request.protocol_version != PROTOCOL_VERSION:
            raise BadSetting(
                f"protocol_version is {request.protocol_version}, this worker speaks "
                f"{PROTOCOL_VERSION}; install the same Penstock on both sides"
            )
        if request.rank != self.rank or request.rank >= max(request.world_size, 1):
            raise BadSetting(
                f"rank {request.rank} of {request.world_size} was sent to the worker of "
                f"--rank {self.rank}"
            )

    def _load(self, request: pb.LoadRequest, context: Context) -> Iterator[pb.LoadProgress]:
        """Loads the model. If the client leaves, the load stops at its next progress report."""
        compilers = None
        if request.device == "cuda":
            begin_cuda_context(request.rank)
            compilers = begin_compilers(max(request.world_size, 1))
        from penstock.grammar.cache import GrammarCache
        from penstock.worker.run.pipeline import LaunchThread, Pipeline
        from penstock.worker.run.trace import Trace
        from penstock.worker.startup.loader import load

        settings = to_settings(request)
        events: SimpleQueue[pb.LoadProgress | None] = SimpleQueue()
        cancelled = threading.Event()
        context.add_callback(cancelled.set)

        def progress(phase: str, done: int, total: int) -> None:
            if cancelled.is_set():
                raise LoadCancelled("the client of this Load has left; nothing is loaded")
            events.put(pb.LoadProgress(progress=pb.Progress(phase=phase, done=done, total=total)))

        def finished(_: Future[Any]) -> None:
            events.put(None)

        thread = self.thread = self.thread or LaunchThread()
        job = thread.submit(lambda: load(settings, progress, compilers))
        job.add_done_callback(finished)
        try:
            yield from iter(events.get, None)
        finally:
            # Also when this iterator is dropped: the next Load must find the thread free.
            cancelled.set()
            wait([job])
        runner, loaded = job.result()
        self.vocab = loaded.limits.vocab
        tokenizer = settings.model / "tokenizer.json"
        self.grammar_cache = GrammarCache(tokenizer, self.vocab, settings.world_size)
        trace = None
        if self.trace_file is not None:
            trace = thread.submit(lambda: Trace(runner.rank_model.device)).result()
        self.pipeline = Pipeline(runner, thread, trace)
        answer = pb.LoadProgress(loaded=from_loaded(loaded))
        self.load = request, answer
        self.lease.keep(request.keep_seconds)
        yield answer

    def Prepare(self, request: pb.PrepareRequest, context: Context) -> pb.PrepareReply:
        """Checks that this worker can run a request, and compiles its grammar."""
        self._require_model(context)
        message = _sampling_error(request.sampling, self.vocab)
        kind = pb.RequestError.KIND_INVALID
        if message is None and request.HasField("grammar"):
            caller = Caller(_client(context))
            # Also called when the call ends by itself: nothing is left to withdraw then.
            if not context.add_callback(caller.cancel):
                caller.cancel()
            try:
                spec, most = to_grammar_spec(request.grammar), request.grammar.max_new_tokens
                self._grammar_cache().prepare(spec, most, caller)
            except CompilationCancelled as error:
                _abort(context, error)
            except GrammarRejected as error:
                message = str(error)
            except Fault as error:
                message, kind = str(error), pb.RequestError.KIND_INTERNAL
        if message is None:
            return pb.PrepareReply()
        return pb.PrepareReply(error=pb.RequestError(kind=kind, message=message))

    def _grammar_cache(self) -> GrammarCache:
        assert self.grammar_cache is not None, "a model is loaded"
        return self.grammar_cache

    def Step(self, requests: Iterator[pb.StepRequest], context: Context) -> Iterator[pb.StepReply]:
        """Replies to each request, in order."""
        self._acquire(context)
        try:
            if self.pipeline is None:
                raise BadStep(NO_MODEL)
            grammar_cache = self._grammar_cache()
            self._hold_lease(context)
            for outcome in self.pipeline.run(
                to_step(request, grammar_cache) for request in requests
            ):
                self.epoch = max(self.epoch, outcome.epoch)
                yield from_outcome(outcome)
        except Exception as error:
            self._exit_if_broken(error)
            _abort(context, error)
        finally:
            self.busy.release()

    def _exit_if_broken(self, error: Exception) -> None:
        """Ends the process if no later step can run. Otherwise the router begins another epoch."""
        if self.pipeline is not None and not self.pipeline.device_works():
            log.critical("the device is unusable after an error; the worker ends", exc_info=error)
            os._exit(1)

    def Reset(self, request: pb.ResetRequest, context: Context) -> pb.ResetReply:
        """Announces an epoch. Its first step, which all ranks get at the same position, empties the
        slots."""
        self._require_model(context)
        if request.epoch < self.epoch:
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"epoch {request.epoch} is older than this worker's, {self.epoch}",
            )
        self.epoch = request.epoch
        return pb.ResetReply()

    def Health(self, request: pb.HealthRequest, context: Context) -> pb.HealthReply:
        """Replies at any time, also during a load or a step."""
        pipeline = self.pipeline
        steps = pipeline.steps if pipeline else 0
        return pb.HealthReply(loaded=pipeline is not None, epoch=self.epoch, steps=steps)

    def Shutdown(self, request: pb.ShutdownRequest, context: Context) -> pb.ShutdownReply:
        """Ends the process after the reply."""
        self.stop()
        return pb.ShutdownReply()

    def close(self) -> None:
        """Writes the trace file, if `--trace` was given and a model was loaded."""
        if self.trace_file is not None and self.pipeline is not None and self.pipeline.trace:
            self.pipeline.trace.write(self.trace_file)

    def _hold_lease(self, context: Context, handover: float = 0.0) -> None:
        """Holds the lease until the call ends: also a call that hangs, once its router is gone."""
        release = self.lease.hold(handover)
        if not context.add_callback(release):
            release()

    def _require_model(self, context: Context) -> None:
        if self.pipeline is None:
            _abort(context, BadStep(NO_MODEL))

    def _acquire(self, context: Context) -> None:
        if not self.busy.acquire(timeout=ACQUIRE_SECONDS):
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"another Load or Step stream is running on this worker, or has been left and did "
                f"not end within {ACQUIRE_SECONDS} s; end it first, or start a new worker",
            )


def attach(server: grpc.Server, shard: ShardService) -> None:
    """Adds a worker's service to a server."""
    rpc.add_ShardServicer_to_server(shard, server)


def _differing(loaded: pb.LoadRequest, request: pb.LoadRequest) -> str:
    """Returns the settings that differ from those of the loaded model; empty if none does. A number
    that leaves the choice to the worker equals the number that was chosen."""
    differing = []
    for field in pb.LoadRequest.DESCRIPTOR.fields:
        had, wanted = getattr(loaded, field.name), getattr(request, field.name)
        chosen = field.name in CHOSEN and wanted == 0
        if had != wanted and not chosen and field.name != "keep_seconds":
            differing.append(f"{field.name} is {had!r}, not {wanted!r}")
    return ", ".join(differing)


def _client(context: Context) -> str:
    """Returns the client from the call's metadata; empty if the router sent none."""
    for key, value in context.invocation_metadata():
        if key == CLIENT and isinstance(value, str):
            return value
    return ""


def _sampling_error(sampling: pb.Sampling, vocab: int) -> str | None:
    """Returns why these parameters are refused, or None."""
    try:
        return sampling_error(to_sampling(sampling), vocab)
    except OverflowError:  # of an id that is no int32
        return f"a token id is outside the vocabulary of {vocab}"


def _abort(context: Context, error: Exception) -> NoReturn:
    if not isinstance(error, Fault):
        log.error("unexpected error", exc_info=error)
    code = CODES.get(type(error), grpc.StatusCode.INTERNAL)
    text = str(error) if isinstance(error, Fault) else f"{type(error).__name__}: {error}"
    context.abort(code, text)
    raise AssertionError("abort returned")

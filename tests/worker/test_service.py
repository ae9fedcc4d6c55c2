"""What each call of the protocol answers; steps themselves are tested elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from local import Context
from local import Refused as Status
from penstock.faults import BadModel, BadSetting, BadStep, Fault, LoadCancelled, TooLittleMemory
from penstock.grammar import GrammarRejected
from penstock.grammar.fair_queue import Caller, CompilationCancelled
from penstock.rpc import shard_pb2 as pb
from penstock.worker import service
from penstock.worker.lease import HANDOVER_SECONDS, Lease
from penstock.worker.protocol.step import Outcome
from penstock.worker.service import CLIENT, ShardService, _abort


class GrammarCache:
    """Prepares grammars, or does not."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked: list[tuple[str, int, Caller]] = []

    def prepare(self, wanted: Any, most: int, caller: Caller) -> None:
        self.asked.append((wanted.text, most, caller))
        caller.check()
        if self.error is not None:
            raise self.error


class Call(Context):
    """A call of a client that says its name, or that has left already."""

    def __init__(self, client: str = "", left: bool = False) -> None:
        super().__init__()
        self.client, self.left = client, left

    def add_callback(self, callback: Any) -> bool:
        return not self.left and super().add_callback(callback)

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("other", "x"), (CLIENT, self.client)) if self.client else ()


class Pipeline:
    steps = 7
    trace: Any = None


def shard(grammar_cache: Any = None) -> ShardService:
    made = ShardService(0, lambda: None)
    made.pipeline, made.grammar_cache, made.vocab = Pipeline(), grammar_cache, 100  # type: ignore[assignment]
    return made


WITH_GRAMMAR = pb.PrepareRequest(
    sampling=pb.Sampling(top_p=1),
    grammar=pb.Grammar(kind=pb.Grammar.KIND_REGEX, text="a+", max_new_tokens=9),
)


def test_grammar_is_prepared_for_the_requesting_client() -> None:
    grammar_cache = GrammarCache()
    assert shard(grammar_cache).Prepare(WITH_GRAMMAR, Call("me")) == pb.PrepareReply()
    assert shard(grammar_cache).Prepare(WITH_GRAMMAR, Call()) == pb.PrepareReply()
    assert [(text, most, caller.client) for text, most, caller in grammar_cache.asked] == [
        ("a+", 9, "me"), ("a+", 9, ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (GrammarRejected("no"), pb.RequestError.KIND_INVALID),
        (Fault("x"), pb.RequestError.KIND_INTERNAL),
    ],
)
def test_prepare_reports_grammar_errors(error: Exception, kind: Any) -> None:
    reply = shard(GrammarCache(error)).Prepare(WITH_GRAMMAR, Call())
    assert reply.error == pb.RequestError(kind=kind, message=str(error))


def test_invalid_sampling_is_refused_before_the_grammar() -> None:
    grammar_cache, request = GrammarCache(), pb.PrepareRequest()
    request.CopyFrom(WITH_GRAMMAR)
    request.sampling.stop_token_ids.append(1 << 20)
    reply = shard(grammar_cache).Prepare(request, Call())
    assert reply.error.kind == pb.RequestError.KIND_INVALID and "stop token" in reply.error.message
    assert not grammar_cache.asked
    request.ClearField("grammar")
    request.sampling.ClearField("stop_token_ids")
    assert (
        shard(grammar_cache).Prepare(request, Call()) == pb.PrepareReply()
        and not grammar_cache.asked
    )


def test_disconnected_client_withdraws_its_grammar() -> None:
    """Also one that had left before anybody listened."""
    with pytest.raises(Status) as status:
        shard(GrammarCache()).Prepare(WITH_GRAMMAR, Call(left=True))
    assert status.value.code == grpc.StatusCode.CANCELLED
    grammar_cache, call = GrammarCache(), Call()
    shard(grammar_cache).Prepare(WITH_GRAMMAR, call)
    assert not grammar_cache.asked[0][2].cancelled
    call.leave()
    assert grammar_cache.asked[0][2].cancelled


def test_an_epoch_never_goes_back() -> None:
    made = shard()
    for epoch in (3, 3, 5):
        made.Reset(pb.ResetRequest(epoch=epoch), Call())
    with pytest.raises(Status, match="epoch 4 is older than this worker's, 5"):
        made.Reset(pb.ResetRequest(epoch=4), Call())
    health = made.Health(pb.HealthRequest(), Call())
    assert health == pb.HealthReply(loaded=True, epoch=5, steps=7)


def test_step_stream_can_begin_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that took a worker over need not have announced its epoch here."""
    made = shard(GrammarCache())
    run = lambda self, steps: iter([Outcome(epoch, 0) for epoch in (5, 4)])  # noqa: E731
    monkeypatch.setattr(Pipeline, "run", run, raising=False)
    assert [reply.epoch for reply in made.Step(iter(()), Call())] == [5, 4]
    assert made.Health(pb.HealthRequest(), Call()).epoch == 5
    assert not made.busy.locked()


@pytest.mark.parametrize("usable", [True, False])
def test_a_worker_ends_if_its_device_is_unusable_after_a_failed_step(
    usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: Any, steps: Any) -> Any:
        raise RuntimeError("an illegal memory access was encountered")

    def exits(code: int) -> None:
        raise SystemExit(code)

    made = shard(GrammarCache())
    monkeypatch.setattr(Pipeline, "run", run, raising=False)
    monkeypatch.setattr(Pipeline, "device_works", lambda self: usable, raising=False)
    monkeypatch.setattr(service.os, "_exit", exits)
    with pytest.raises(Status if usable else SystemExit, match="INTERNAL" if usable else "1"):
        list(made.Step(iter(()), Call()))
    assert not made.busy.locked()


def test_calls_before_a_load_are_refused() -> None:
    made = ShardService(0, lambda: None)
    assert made.Health(pb.HealthRequest(), Call()) == pb.HealthReply()
    for call, request in (
        (made.Prepare, WITH_GRAMMAR),
        (made.Reset, pb.ResetRequest(epoch=1)),
        (lambda *asked: list(made.Step(*asked)), iter(())),
    ):
        with pytest.raises(Status, match="FAILED_PRECONDITION: no model is loaded"):
            call(request, Call())
    assert made.epoch == 0 and not made.busy.locked()
    made.close()  # nothing ran: no trace


def test_one_load_or_stream_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "ACQUIRE_SECONDS", 0)
    made = shard()
    with made.busy:
        for calls in (made.Load(pb.LoadRequest(), Call()), made.Step(iter(()), Call())):
            with pytest.raises(Status, match="FAILED_PRECONDITION: another Load or Step"):
                list(calls)
    with pytest.raises(Status, match="protocol_version is 0"):  # it is free again
        list(made.Load(pb.LoadRequest(), Call()))
    assert not made.busy.locked()


@pytest.mark.parametrize(
    ("rank", "size", "fits"), [(0, 0, True), (0, 1, True), (0, 2, True), (1, 2, False)]
)
def test_the_rank_of_a_load(rank: int, size: int, fits: bool) -> None:
    request = pb.LoadRequest(protocol_version=1, rank=rank, world_size=size)
    made = ShardService(0, lambda: None)
    if fits:
        made._check_load(request)
    else:
        with pytest.raises(BadSetting, match=f"rank {rank} of {size}"):
            made._check_load(request)
    with pytest.raises(BadSetting, match="rank 2 of 2"):
        ShardService(2, lambda: None)._check_load(
            pb.LoadRequest(protocol_version=1, rank=2, world_size=2)
        )


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (BadSetting("x"), "INVALID_ARGUMENT", "x"),
        (BadModel("x"), "FAILED_PRECONDITION", "x"),
        (BadStep("x"), "FAILED_PRECONDITION", "x"),
        (TooLittleMemory("x"), "RESOURCE_EXHAUSTED", "x"),
        (LoadCancelled("x"), "CANCELLED", "x"),
        (CompilationCancelled("x"), "CANCELLED", "x"),
        (Fault("x"), "INTERNAL", "x"),
        (KeyError("x"), "INTERNAL", "KeyError: 'x'"),
    ],
)
def test_errors_map_to_grpc_statuses(
    error: Exception, code: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Status) as status:
        _abort(Call(), error)  # type: ignore[arg-type]
    assert status.value.code == grpc.StatusCode[code] and status.value.text == text
    # What nobody has words for is in the log, with its traceback.
    assert bool(caplog.records) == (not isinstance(error, Fault))


def test_trace_is_written_to_the_requested_file(tmp_path: Path) -> None:
    class Trace:
        written: list[Path] = []  # noqa: RUF012

        def write(self, path: Path) -> None:
            self.written.append(path)

    made, trace = shard(), Trace()
    assert made.pipeline is not None
    made.close()
    made.trace_file = tmp_path / "trace"
    made.close()
    made.pipeline.trace = trace  # type: ignore[assignment]
    made.close()
    assert trace.written == [tmp_path / "trace"]


def test_shutdown_ends_the_process() -> None:
    ended: list[bool] = []
    ShardService(0, lambda: ended.append(True)).Shutdown(pb.ShutdownRequest(), Call())  # type: ignore
    assert ended == [True]


def loaded_shard(**settings: Any) -> ShardService:
    made = shard()
    request = pb.LoadRequest(protocol_version=1, dtype="float32", max_slots=32, **settings)
    made.load = request, pb.LoadProgress(loaded=pb.Loaded(max_slots=32))
    return made


def load(shard: ShardService, context: Context | None = None, **settings: Any) -> list[Any]:
    request = pb.LoadRequest(protocol_version=1, **settings)
    return list(shard.Load(request, context or Context()))


def test_another_router_gets_the_loaded_model_at_once() -> None:
    kept = loaded_shard()
    for slots in (32, 0):  # 0 leaves the number to the worker
        (answer,) = load(kept, dtype="float32", max_slots=slots, keep_seconds=9)
        assert answer.loaded.max_slots == 32


def test_other_settings_are_refused_by_name() -> None:
    with pytest.raises(Status) as refused:
        load(loaded_shard(threads=2), dtype="float64", max_slots=8, threads=2)
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
    message = refused.value.text
    assert "dtype is 'float32', not 'float64'" in message
    assert "max_slots is 32, not 8" in message and "threads" not in message


def test_only_a_load_that_is_accepted_keeps_the_worker() -> None:
    held: list[str] = []

    class Watched(Lease):
        def keep(self, seconds: float) -> None:
            held.append(f"keep {seconds}")

        def hold(self, handover: float = 0.0) -> Any:
            held.append(f"hold {handover}")
            return lambda: held.append("release")

    kept = loaded_shard()
    kept.lease = Watched(lambda: None)
    with pytest.raises(Status):
        load(kept, dtype="float64", keep_seconds=9)
    assert not held
    context = Context()
    load(kept, context, dtype="float32", keep_seconds=9)
    assert held == [f"hold {HANDOVER_SECONDS}", "keep 9"]
    context.leave()
    assert held[2:] == ["release"]

"""Errors of one request stay its own; broken protocol is refused; the lease ends the process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from checkpoints import checkpoint_maker, prompt
from driver import Driver, OwnProcess, Stream, greedy, new_sequence
from local import LocalWorker, Refused
from penstock.rpc import shard_pb2 as pb
from safetensors.torch import load_file, save_file

CURSED = 17  # a token whose embedding is not a number


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))("llama2")
    tensors = load_file(path / "model.safetensors")
    tensors["model.embed_tokens.weight"][CURSED] = torch.nan
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.fixture(scope="module")
def loaded(path: Path) -> tuple[LocalWorker, pb.Loaded]:
    worker = LocalWorker()
    return worker, worker.load(path)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (greedy([1, 2, 501]), "token id 501 is outside the vocabulary"),
        (greedy([]), "a sequence has 0 tokens"),
        (greedy(prompt(300)), "a sequence has 300 tokens"),
        (greedy([1, 2], stop_token_ids=[9999]), "stop token id 9999"),
        (greedy([CURSED, 5]), "not finite"),
    ],
    ids=["vocabulary", "empty", "long", "stop", "nan"],
)
def test_invalid_sequence_does_not_affect_others(driver: Driver, bad: Any, text: str) -> None:
    def run(*others: Any) -> list[int]:
        good = greedy([t for t in prompt(30) if t != CURSED], 8)
        sequences = [*others, good]
        for sequence in sequences:
            driver.enter(sequence)
        parts = {"run_slots": [s.slot for s in sequences]}
        tables = [[driver.free.pop() for _ in range(4)] for _ in sequences]
        new = [new_sequence(s, 0, t) for s, t in zip(sequences, tables, strict=True)]
        driver.new = []
        driver.stream.send(new=new, run_tokens=[max(len(s.prompt), 1) for s in sequences], **parts)
        driver._take(driver.stream.receive(), {s.slot: s for s in sequences})
        for _ in range(7):
            driver.stream.send(run_slots=[good.slot], run_tokens=[1])
            driver._take(driver.stream.receive(), {s.slot: s for s in sequences})
        driver.finished += [s.slot for s in sequences]
        return good.tokens

    alone = run()
    assert run(bad) == alone
    assert text in str(bad.error)


def test_maximum_top_k_means_no_limit(driver: Driver) -> None:
    tokens = [t for t in prompt(20) if t != CURSED]
    largest, off = (
        greedy(list(tokens), 4, temperature=0.9, top_k=top_k) for top_k in (2**32 - 1, 0)
    )
    for sequence in (largest, off):
        driver.enter(sequence)
    driver.finish([largest, off])
    assert largest.tokens == off.tokens and largest.error is None


def test_run_beyond_its_blocks_fails_only_its_slot(driver: Driver) -> None:
    sequence = greedy(prompt(20))
    sequence.slot = 3
    driver.stream.send(new=[new_sequence(sequence, 0, [0])], run_slots=[3], run_tokens=[20])
    reply = driver.stream.receive()
    assert [e.slot for e in reply.errors] == [3] and not reply.slots
    assert reply.errors[0].error.kind == pb.RequestError.KIND_INTERNAL


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"run_slots": [99], "run_tokens": [1]}, "run_slots holds 99"),
        ({"run_slots": [1, 1], "run_tokens": [1, 1]}, "names a slot twice"),
        ({"run_slots": [1], "run_tokens": []}, "differ in length"),
        ({"run_slots": [1], "run_tokens": [513]}, "513 tokens"),
        ({"growth": [pb.BlockGrowth(group=1, counts=[1], blocks=[1])]}, "KV group"),
        ({"step": 5}, "step 5 of epoch"),
    ],
)
def test_protocol_error_ends_the_stream(
    loaded: tuple[LocalWorker, pb.Loaded], parts: dict[str, Any], text: str
) -> None:
    worker, _ = loaded
    stream = Stream([worker], worker.stub.Health(pb.HealthRequest()).epoch + 1)
    stream.step = parts.pop("step", 0)
    stream.send(**parts)
    with pytest.raises(Refused, match=text):
        stream.receive()


def test_prepare_refuses_invalid_parameters(loaded: tuple[LocalWorker, pb.Loaded]) -> None:
    stub = loaded[0].stub
    good = pb.Sampling(temperature=0.7, top_p=0.9)
    assert not stub.Prepare(pb.PrepareRequest(sampling=good)).HasField("error")
    lists: tuple[tuple[dict[str, Any], str], ...] = (
        ({"stop_token_ids": range(257)}, "257 stop token ids"),
        ({"banned_token_ids": [2**31]}, "outside the vocabulary"),
        ({"logit_bias": pb.LogitBias(token_ids=[5, 6], values=[1])}, "2 tokens and 1 values"),
    )
    for fields, text in lists:
        reply = stub.Prepare(pb.PrepareRequest(sampling=pb.Sampling(top_p=1, **fields)))
        assert reply.error.kind == pb.RequestError.KIND_INVALID
        assert text in reply.error.message


def test_lease_shutdown_and_second_stream(path: Path) -> None:
    worker = OwnProcess()
    with pytest.raises(grpc.RpcError, match="no model is loaded"):
        next(worker.stub.Step(iter([pb.StepRequest()])))
    for call, request in (
        (worker.stub.Reset, pb.ResetRequest(epoch=1)),
        (worker.stub.Prepare, pb.PrepareRequest()),
    ):
        with pytest.raises(grpc.RpcError, match="no model is loaded"):
            call(request)
    loaded = worker.load(path)
    assert loaded.kv_groups[0].block_tokens == 16
    assert worker.load(path) == loaded  # a router that lost its connection asks again
    with pytest.raises(grpc.RpcError, match="loaded already"):
        worker.load(path, max_slots=5)
    worker.stub.Shutdown(pb.ShutdownRequest())
    assert worker.process.wait(timeout=60) == 0
    worker.close()
    orphan = OwnProcess()
    assert orphan.close() == 0  # its standard input ended


def test_last_layer_mlp_runs_only_on_sampled_rows(path: Path) -> None:
    """Of a prompt, its keys and values; that the tokens are right is shown elsewhere."""
    worker = LocalWorker()
    driver = Driver([worker], worker.load(path))
    last, rows = worker.runner.rank_model.model.blocks[-1], []
    whole = last.mlp

    def counted(norm: Any, residual: Any) -> Any:
        rows.append(len(residual.x))
        return whole(norm, residual)

    last.mlp = counted
    stream, reader = greedy(prompt(5), 9), greedy(prompt(40), 2)
    driver.enter(stream)
    driver.step([stream])
    driver.enter(reader)
    driver.step([reader], chunk=24)
    driver.step([stream, reader], chunk=8)
    driver.step([stream, reader], chunk=8)
    driver.stream.close()
    assert rows == [1, 0, 1, 2]

"""Protocol messages become values and values messages, field by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from penstock.faults import BadStep
from penstock.grammar import GrammarKind, GrammarRejected
from penstock.models import Backend
from penstock.rpc import shard_pb2 as pb
from penstock.worker.protocol.messages import (
    MOST_TOP_K,
    from_loaded,
    from_outcome,
    to_grammar_spec,
    to_sampling,
    to_settings,
    to_step,
)
from penstock.worker.protocol.sampling_params import (
    MOST_LOGPROB_TOKEN_IDS,
    WHOLE_VOCABULARY,
    Watermark,
)
from penstock.worker.protocol.settings import KvPool, Limits, Loaded, MemoryReport
from penstock.worker.protocol.step import (
    FaultKind,
    Outcome,
    PromptLogprobs,
    SlotError,
    TopLogprobs,
)
from penstock.worker.service import _sampling_error

VOCAB = 300
NO_LIBRARY: Any = None  # of grammars: none is asked for
BIG = (1 << 64) - 5  # as signed 64 bits -5


def plain(value: Any) -> Any:
    """With lists for arrays, which cannot be compared."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    fields = getattr(value, "__dataclass_fields__", None)
    return {name: plain(getattr(value, name)) for name in fields} if fields else value


def sampling(**fields: Any) -> pb.Sampling:
    return pb.Sampling(**{"temperature": 0.5, "top_p": 1.0, **fields})


ASKED: dict[str, Any] = {
    "min_p": 0.25,
    "typical_p": 0.5,
    "penalties": pb.Penalties(repetition=1.5, frequency=0.25, presence=0.125),
    "logit_bias": pb.LogitBias(token_ids=[3, 4], values=[1.5, -2]),
    "allowed": pb.TokenSet(token_ids=[1, 2]),
    "banned_token_ids": [2, 9],
    "watermark": pb.Watermark(gamma=0.25, delta=2, key=BIG),
    "bad_words": [pb.BadWord(token_ids=[5, 6])],
}
TYPED: dict[str, Any] = {
    "min_p": 0.25, "typical_p": 0.5, "repetition": 1.5, "frequency": 0.25, "presence": 0.125,
    "bias": [[3, 4], [1.5, -2]], "allowed": [1, 2], "banned": [2, 9], "bad_words": [[5, 6]],
    "watermark": plain(Watermark(0.25, 2, -5)),
}  # fmt: skip
NOTHING = {
    "temperature": 0.5, "top_k": 0, "top_p": 1, "seed": 0, "min_tokens": 0, "stop_token_ids": [],
    "top_logprobs": 0, "prompt_logprobs": None, "logprob_token_ids": None,
    "min_p": 0, "typical_p": 1, "repetition": 1, "frequency": 0, "presence": 0, "bias": None,
    "allowed": None, "banned": None, "bad_words": [], "watermark": None,
}  # fmt: skip
NAMES = {"logit_bias": ["bias"], "penalties": ["repetition", "frequency", "presence"]}


def test_all_logits_processor_fields_are_converted() -> None:
    assert plain(to_sampling(sampling(**ASKED))) == {**NOTHING, **TYPED}
    assert plain(to_sampling(sampling())) == plain(to_sampling(sampling(typical_p=1))) == NOTHING


@pytest.mark.parametrize("field", ASKED)
def test_each_logits_processor_field_is_converted(field: str) -> None:
    names = NAMES.get(field, [field.removesuffix("_token_ids")])
    found = plain(to_sampling(sampling(**{field: ASKED[field]})))
    assert found == {**NOTHING, **{name: TYPED[name] for name in names}}


def test_sampling() -> None:
    result = sampling(
        top_k=7, seed=BIG, min_tokens=4, stop_token_ids=[8, 9], top_logprobs=3, prompt_logprobs=0,
        logprob_token_ids=[11],
    )  # fmt: skip
    assert plain(to_sampling(result)) == {
        **NOTHING, "temperature": 0.5, "top_k": 7, "top_p": 1, "seed": -5, "min_tokens": 4,
        "stop_token_ids": [8, 9],
        "top_logprobs": 3, "prompt_logprobs": 0,
        "logprob_token_ids": [11],
    }  # fmt: skip
    least = to_sampling(sampling(seed=(1 << 63) - 1))
    assert least.seed == (1 << 63) - 1 and to_sampling(sampling(seed=1 << 63)).seed == -(1 << 63)
    assert least.prompt_logprobs is None and least.logprob_token_ids is None
    most = to_sampling(sampling(top_k=(1 << 32) - 1))
    assert most.top_k == MOST_TOP_K


@pytest.mark.parametrize(
    ("good", "bad", "text"),
    [
        ({"top_logprobs": 20}, {"top_logprobs": 21}, "of 21 tokens were requested"),
        ({"prompt_logprobs": 20}, {"prompt_logprobs": 21}, "of 21 tokens were requested"),
        (
            {"prompt_logprobs": WHOLE_VOCABULARY, "top_logprobs": 20},
            {"prompt_logprobs": WHOLE_VOCABULARY, "top_logprobs": 21},
            "at most 20 are sent",
        ),
        ({}, {"top_logprobs": WHOLE_VOCABULARY}, "at most 20 are sent"),
        (
            {"logprob_token_ids": [1] * MOST_LOGPROB_TOKEN_IDS},
            {"logprob_token_ids": [1] * (MOST_LOGPROB_TOKEN_IDS + 1)},
            "129 logprob token ids",
        ),
        ({"logprob_token_ids": [299]}, {"logprob_token_ids": [5, 300]}, "logprob token id 300"),
        ({"stop_token_ids": [299]}, {"stop_token_ids": [300]}, "stop token id 300"),
        ({"banned_token_ids": [299]}, {"banned_token_ids": [300]}, "banned token id 300"),
        ({}, {"banned_token_ids": [1 << 31]}, "outside the vocabulary of 300"),
    ],
)
def test_bad_sampling_parameters_are_explained(
    good: dict[str, Any], bad: dict[str, Any], text: str
) -> None:
    assert _sampling_error(sampling(**good), VOCAB) is None
    assert text in str(_sampling_error(sampling(**bad), VOCAB))


def test_settings() -> None:
    fields: dict[str, Any] = {
        "device": "cpu", "dtype": "float32", "rank": 1, "world_size": 2, "rendezvous": "file:///x",
        "max_sequence_tokens": 3, "max_slots": 4, "max_step_tokens": 5, "kv_memory_bytes": 6,
        "memory_fraction": 0.5, "block_tokens": 7, "threads": 8, "kv_dtype": "int8",
        "quantize": "int4", "expert_parallel": True, "model_backend": "transformers",
    }  # fmt: skip
    settings = to_settings(pb.LoadRequest(model_path="/m", **fields))
    expected = {**fields, "model_backend": Backend.TRANSFORMERS}
    assert plain(settings) == {"model": Path("/m"), **expected}
    assert to_settings(pb.LoadRequest()).model_backend is Backend.AUTO
    assert to_settings(pb.LoadRequest(model_path="/m")).kv_dtype == "auto"
    assert to_settings(pb.LoadRequest()).world_size == 1


def test_loaded() -> None:
    pools = KvPool(5, 13, 14), KvPool(15, 16)
    limits = Limits(1, step_tokens=2, sequence_tokens=3, block_tokens=4, pools=pools, vocab=6)
    memory = MemoryReport(total=7, weights=8, activations=9, graphs=10, slots=11, kv=12)
    message = from_loaded(Loaded(limits, "some GPU", memory, Backend.NATIVE, ("slow",), [15, 16]))
    assert message == pb.Loaded(
        kv_groups=[
            pb.KvGroup(block_tokens=4, blocks=5, block_bytes=13, window=14),
            pb.KvGroup(block_tokens=4, blocks=15, block_bytes=16, window=0),
        ],
        max_slots=1, max_step_tokens=2, max_sequence_tokens=3, max_tokens_per_run=1, vocab_size=6,
        device_name="some GPU", model_backend="native", limitations=["slow"], step_sizes=[15, 16],
        memory=pb.MemoryReport(total=7, weights=8, activations=9, graphs=10, slots=11, kv=12),
    )  # fmt: skip


def test_a_step() -> None:
    entering = pb.NewSequence(
        slot=1, token_ids=[7, 8], generated=1, computed=1, request_id=9, sampling=sampling(),
        tables=[pb.BlockTable(blocks=[3]), pb.BlockTable(group=1, blocks=[6, (1 << 32) - 1])],
    )  # fmt: skip
    fork = pb.SlotFork(source=1, destination=2, tables=[pb.BlockTable(blocks=[4])], seed=BIG)
    request = pb.StepRequest(
        epoch=1, step=2, finished=[3], new=[entering], forks=[fork],
        copies=[
            pb.BlockCopies(sources=[1], destinations=[2]),
            pb.BlockCopies(group=1, sources=[3, 5], destinations=[4, 6]),
        ],
        growth=[
            pb.BlockGrowth(counts=[1, 0], blocks=[5]),
            pb.BlockGrowth(group=1, counts=[0, 1], blocks=[7]),
        ],
        run_slots=[1, 2], run_tokens=[3, 4],
        steered_slots=[5], steered_tokens=[6],
    )  # fmt: skip
    found = plain(to_step(request, NO_LIBRARY))
    assert found.pop("received") > 0
    (new,) = found.pop("new")
    assert new.pop("sampling") == plain(to_sampling(sampling()))
    assert new == {
        "slot": 1, "token_ids": [7, 8], "generated": 1, "computed": 1,
        "tables": {0: [3], 1: [6, -1]},
        "matcher": None, "fault": None, "request_id": 9,
    }  # fmt: skip
    assert found == {
        "epoch": 1, "step": 2, "finished": [3],
        "forks": [{"source": 1, "destination": 2, "tables": {0: [4]}, "seed": -5}],
        "copies": [
            {"group": 0, "sources": [1], "destinations": [2]},
            {"group": 1, "sources": [3, 5], "destinations": [4, 6]},
        ],
        "growth": [
            {"group": 0, "counts": [1, 0], "blocks": [5]},
            {"group": 1, "counts": [0, 1], "blocks": [7]},
        ],
        "run_slots": [1, 2], "run_tokens": [3, 4], "steered_slots": [5],
        "steered_tokens": [6],
    }  # fmt: skip
    assert plain(to_step(pb.StepRequest(), NO_LIBRARY))["growth"] == []


TABLE = pb.BlockTable


def test_two_tables_of_one_group_are_a_protocol_error() -> None:
    """What names groups that there are not is refused with the step: see test_limits."""
    with pytest.raises(BadStep, match="two tables of one KV group"):
        to_step(pb.StepRequest(forks=[pb.SlotFork(tables=[TABLE(), TABLE()])]), NO_LIBRARY)


def test_structured_outputs() -> None:
    for kind in ("JSON_SCHEMA", "REGEX", "GRAMMAR", "CALLS"):
        grammar = pb.Grammar(kind=f"KIND_{kind}", text="t", complete=kind == "REGEX")
        wanted = to_grammar_spec(grammar)
        assert (wanted.kind, wanted.text, wanted.complete) == (
            GrammarKind[kind],
            "t",
            kind == "REGEX",
        )
        assert wanted.reasoning is None
    grammar.reasoning.CopyFrom(pb.Reasoning(open="<a>", close="</a>", started=True))
    assert plain(to_grammar_spec(grammar).reasoning) == {
        "open": b"<a>",
        "close": b"</a>",
        "started": True,
        "header": b"",
    }
    with pytest.raises(GrammarRejected, match="no grammar of kind 0"):
        to_grammar_spec(pb.Grammar())


def test_an_outcome() -> None:
    result = PromptLogprobs(9, 1, [-1.0], [2], 1, [7], [-0.5])
    outcome = Outcome(
        epoch=1, step=2, slots=[3, 4], token_ids=[5, 6], logprobs=[-0.25, -0.5],
        faults=[SlotError(7, "why", FaultKind.UNPREPARED)], closing=[4],
        top_logprobs=TopLogprobs([1, 0], [8], [-0.125]), prompt_logprobs=[result], host_us=10,
        device_us=11,
    )  # fmt: skip
    error = pb.RequestError(kind=pb.RequestError.KIND_UNPREPARED, message="why")
    prompt = pb.PromptLogprobs(
        request_id=9, start=1, logprobs=[-1], ranks=[2], top=1, top_token_ids=[7],
        top_logprobs=[-0.5],
    )  # fmt: skip
    assert from_outcome(outcome) == pb.StepReply(
        epoch=1, step=2, slots=[3, 4], counts=[1, 1], token_ids=[5, 6], logprobs=[-0.25, -0.5],
        errors=[pb.SlotError(slot=7, error=error)], closing=[4], top_counts=[1, 0],
        top_token_ids=[8], top_logprobs=[-0.125], prompt_logprobs=[prompt],
        timing=pb.StepTiming(host=10, device=11),
    )  # fmt: skip
    assert from_outcome(Outcome(1, 2)) == pb.StepReply(epoch=1, step=2, timing=pb.StepTiming())

"""What requests ask for, all in one batch, on each device: grammars, penalties, filters, numbers.

Expected is what transformers' logits say of each token, given those before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import reference
from driver import Driver, Running, greedy
from local import LocalWorker
from penstock.rpc import shard_pb2 as pb
from torch import Tensor
from transformers import AutoTokenizer

BROOK = Path(__file__).resolve().parents[2] / "python/penstock/brook"
EOS = [2, 3]
TOKENS = 96
# Of log-probabilities, in float32 on either device; and of logits that decide.
TOLERANCE = 5e-3
KIND = {"enum": ["fox", "owl", "mole"]}
SCHEMAS = [
    # Followed by outlines, and by llguidance.
    {"kind": KIND, "likes": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
    {"kind": KIND, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
]
BIAS = {300: 2.5, 77: -100.0}
BANNED = list(range(0, 4096, 7))
PENALTIES = pb.Penalties(repetition=1.3, frequency=0.4, presence=0.3)
MIN_P = 0.2


@pytest.fixture(
    scope="module",
    params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)],
)
def worker(request: pytest.FixtureRequest) -> Iterator[tuple[LocalWorker, pb.Loaded]]:
    worker = LocalWorker()
    memory = {"kv_memory_bytes": 64 << 20} if request.param == "cuda" else {}
    yield worker, worker.load(BROOK, dtype="float32", device=request.param, **memory)
    assert worker.shard.grammar_cache is not None
    worker.shard.grammar_cache.close()


def with_grammar(tokenizer: Any, seed: int) -> Running:
    properties = SCHEMAS[seed % 2]
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    schema["additionalProperties"] = False
    sequence = greedy(tokenizer(f"Tell me of {seed}").input_ids, TOKENS, temperature=1.5, seed=seed)
    sequence.grammar = pb.Grammar(
        kind=pb.Grammar.KIND_JSON_SCHEMA,
        text=json.dumps(schema),
        complete=True,
        max_new_tokens=TOKENS,
        end_token_ids=EOS,
    )
    return sequence


def rows(model: Any, sequence: Running) -> Tensor:
    """Logits [tokens, vocab] from which each generated token was chosen."""
    with torch.inference_mode():
        logits = model(torch.tensor([sequence.prompt + sequence.tokens])).logits[0].double()
    return logits[len(sequence.prompt) - 1 : -1]


def adjusted(sequence: Running, at: int, row: Tensor) -> Tensor:
    """A row after bias, penalties and bans, in this order."""
    row = row.clone()
    for token, bias in BIAS.items():
        row[token] += bias
    known = torch.tensor(sequence.prompt + sequence.tokens[:at]).unique()
    some = row[known]
    row[known] = torch.where(some < 0, some * 1.3, some / 1.3)
    counts = torch.bincount(torch.tensor(sequence.tokens[:at]).long(), minlength=len(row))
    row -= PENALTIES.frequency * counts + PENALTIES.presence * (counts > 0)
    row[BANNED] = -torch.inf
    return row


def ended(sequence: Running) -> bool:
    """Of one that may have no token yet: its mask was late."""
    return bool(sequence.tokens) and sequence.tokens[-1] in EOS


def finish(driver: Driver, sequences: list[Running], result: Running) -> list[list[int]]:
    """Runs all to their ends; the likeliest tokens in the place of each of `told`'s."""
    tops, waiting = [], list(sequences)
    while waiting:
        reply = driver.step(waiting)
        slots, counts = list(reply.slots), list(reply.top_counts)
        if counts and result.slot in slots:
            place = slots.index(result.slot)
            before = sum(counts[:place])
            tops.append(list(reply.top_token_ids[before : before + counts[place]]))
        for sequence in [s for s in waiting if s.done or (s.grammar and ended(s))]:
            waiting.remove(sequence)
            driver.leave(sequence)
    return tops


def of_tokens(values: Tensor, sequence: Running) -> Tensor:
    """values [tokens, vocab] of the generated tokens."""
    return values.gather(1, torch.tensor(sequence.tokens)[:, None])[:, 0]


def check_logprobs(logits: Tensor, plain: Running, tops: list[list[int]]) -> None:
    logprobs = logits.log_softmax(-1)
    assert plain.logprobs == pytest.approx(of_tokens(logprobs, plain).tolist(), abs=TOLERANCE)
    assert [top[0] for top in tops] == plain.tokens
    for top, row in zip(tops, logprobs, strict=True):
        third = row.topk(3).values[2]
        assert len(set(top)) == 3 and bool((row[top] >= third - TOLERANCE).all())


def check_adjusted(logits: Tensor, sequence: Running) -> None:
    logprobs = of_tokens(logits.log_softmax(-1), sequence).tolist()
    assert sequence.logprobs == pytest.approx(logprobs, abs=TOLERANCE)
    for at, row in enumerate(logits):
        changed = adjusted(sequence, at, row)
        assert changed[sequence.tokens[at]] >= changed.max() - TOLERANCE


def check_document(tokenizer: Any, seed: int, sequence: Running) -> None:
    tokens = sequence.tokens[:-1] if sequence.tokens[-1] in EOS else sequence.tokens
    document = json.loads(tokenizer.decode(tokens))
    assert set(document) == set(SCHEMAS[seed % 2]) and document["kind"] in KIND["enum"]
    if seed % 2:
        assert type(document["age"]) is int and 0 <= document["age"] <= 120
    else:
        assert len(document["likes"]) <= 3 and all(type(x) is bool for x in document["likes"])


def test_all_sampling_options_in_one_batch_match_transformers(
    worker: tuple[LocalWorker, pb.Loaded],
) -> None:
    """Long enough for graphs of every choice."""
    shard, loaded = worker
    tokenizer, model = AutoTokenizer.from_pretrained(BROOK), reference(BROOK, torch.float32)
    ids = tokenizer("Once upon a time a fox").input_ids
    bias = pb.LogitBias(token_ids=list(BIAS), values=list(BIAS.values()))
    asked = {"penalties": PENALTIES, "logit_bias": bias, "banned_token_ids": BANNED}
    plain, penalised = greedy(ids, TOKENS, top_logprobs=3), greedy(ids, TOKENS, **asked)
    filtered = greedy(ids, TOKENS, temperature=1.0, seed=4, min_p=MIN_P)
    documents = [with_grammar(tokenizer, seed) for seed in range(12)]
    everyone = [plain, penalised, filtered, *documents]
    driver = Driver([shard], loaded)  # type: ignore[list-item]
    for sequence in everyone:
        driver.enter(sequence)
    tops = finish(driver, everyone, plain)
    driver.stream.close()

    assert [sequence.error for sequence in everyone] == [None] * len(everyone)
    check_logprobs(rows(model, plain), plain, tops)
    check_adjusted(rows(model, penalised), penalised)
    chances = rows(model, filtered).softmax(-1)
    least = (MIN_P - TOLERANCE) * chances.max(-1).values
    assert bool((of_tokens(chances, filtered) >= least).all())
    for seed, sequence in enumerate(documents):
        check_document(tokenizer, seed, sequence)

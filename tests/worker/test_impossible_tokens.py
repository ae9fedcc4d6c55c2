"""A logprob of -inf is a number: it is returned, and no request fails because of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import VOCAB, checkpoint_maker, prompt
from driver import Driver, Running, greedy
from local import LocalWorker
from penstock.rpc import shard_pb2 as pb
from penstock.worker import sampling
from penstock.worker.protocol.sampling_params import WHOLE_VOCABULARY

NEVER = 400  # a token whose logit is -inf
PROMPT = [*(token for token in prompt(12) if token != NEVER), NEVER, 5, 6]
AT = PROMPT.index(NEVER)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalWorker, pb.Loaded]:
    worker = LocalWorker()
    path: Path = checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))("llama31")
    return worker, worker.load(path, dtype="float64")


@pytest.fixture
def never(loaded: tuple[LocalWorker, pb.Loaded], monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's logits of NEVER are -inf."""
    model = loaded[0].runner.rank_model.model
    compute = model.logits

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        return compute(hidden).index_fill(1, torch.tensor([NEVER]), -math.inf)

    monkeypatch.setattr(model, "logits", logits)


def first_reply(driver: Driver, sequence: Running) -> pb.StepReply:
    """To a step that runs the whole prompt."""
    driver.enter(sequence)
    reply = driver.step([sequence])
    driver.leave(sequence)
    assert sequence.error is None and not reply.errors
    assert len(sequence.tokens) == 1
    return reply


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("top", [0, 3, WHOLE_VOCABULARY])
def test_impossible_prompt_token_has_infinite_logprob(driver: Driver, top: int) -> None:
    (result,) = first_reply(driver, greedy(PROMPT, 1, prompt_logprobs=top)).prompt_logprobs
    assert result.start == 1 and len(result.logprobs) == len(PROMPT) - 1
    infinite = [at for at, logprob in enumerate(result.logprobs) if logprob == -math.inf]
    assert infinite == [AT - 1] and result.ranks[AT - 1] == VOCAB
    assert all(math.isfinite(p) for p in result.logprobs[: AT - 1] + result.logprobs[AT:])
    if top == WHOLE_VOCABULARY:
        assert list(result.top_token_ids[VOCAB - 1 :: VOCAB]) == [NEVER] * (len(PROMPT) - 1)
        assert list(result.top_logprobs[VOCAB - 1 :: VOCAB]) == [-math.inf] * (len(PROMPT) - 1)


@pytest.mark.usefixtures("never")
def test_impossible_requested_token_has_infinite_logprob(driver: Driver) -> None:
    reply = first_reply(driver, greedy(PROMPT, 1, top_logprobs=2, logprob_token_ids=[NEVER, 5]))
    result = dict(zip(reply.top_token_ids, reply.top_logprobs, strict=True))
    assert result.pop(NEVER) == -math.inf
    assert reply.token_ids[0] in result and all(math.isfinite(p) for p in result.values())


def test_masked_stop_token_has_infinite_logprob(driver: Driver) -> None:
    """Masked, it is as impossible as one that the model excludes."""
    asked = {"min_tokens": 3, "stop_token_ids": [7], "logprob_token_ids": [7]}
    reply = first_reply(driver, greedy(PROMPT, 1, **asked))
    assert list(reply.top_token_ids) == [7] and list(reply.top_logprobs) == [-math.inf]


def test_impossible_chosen_token_has_infinite_logprob(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its probability is too small for a float32."""
    choose = sampling.choose

    def improbable(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        ids, logprobs = choose(*arguments)
        return ids, torch.full_like(logprobs, -math.inf)

    monkeypatch.setattr(sampling, "choose", improbable)
    reply = first_reply(driver, greedy(PROMPT, 1))
    assert len(reply.token_ids) == 1 and list(reply.logprobs) == [-math.inf]
    asking = first_reply(driver, greedy(PROMPT, 1, top_logprobs=2))
    assert list(asking.token_ids) == list(reply.token_ids)
    assert list(asking.top_counts) == [2] and len(asking.top_token_ids) == 2

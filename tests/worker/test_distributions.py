"""Tokens follow the distribution that transformers' processors make, in their order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from driver import greedy, new_sequence
from penstock.worker.protocol.messages import to_sampling
from penstock.worker.protocol.sampling_params import SLOT_PARAMS
from penstock.worker.protocol.settings import KvPool, Limits
from penstock.worker.protocol.step import NewSequence
from penstock.worker.sampling import SlotParams, choose, column_length, row_places, row_words
from penstock_kernels import process_logits
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

VOCAB = 40
DRAWS = 100_000
PROMPT, ANSWER = [1, 2, 3, 5, 8, 13], [2, 21, 34, 21]


class Wish(NamedTuple):
    """What one row asks."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition: float = 1.0
    bias: tuple[tuple[int, float], ...] = ()
    frequency: float = 0.0
    presence: float = 0.0
    banned: tuple[int, ...] = ()


WISHES = {
    "temperature": Wish(0.6),
    "top_k": Wish(top_k=7),
    "top_p": Wish(top_p=0.7),
    "min_p": Wish(min_p=0.08),
    "typical_p": Wish(typical_p=0.6),
    "typical_p of a flat row": Wish(3.0, typical_p=0.85),
    "repetition": Wish(repetition=1.7),
    "frequency, presence": Wish(frequency=0.6, presence=-2.0),
    "banned": Wish(banned=(10, 21, 30)),
    "bias": Wish(bias=((2, 3.0), (30, -100.0), (39, 2.0))),
    "top_k, top_p": Wish(0.8, 12, 0.9),
    "top_p, min_p": Wish(1.3, top_p=0.95, min_p=0.05),
    "min_p, typical_p": Wish(min_p=0.02, typical_p=0.8),
    "all": Wish(1.4, 20, 0.97, 0.03, 0.9, 1.3, ((7, 1.5),), 0.3, 0.2, (4,)),
}


class OpenAiPenalties(LogitsProcessor):
    """By OpenAI's definition, of generated tokens; transformers has none."""

    def __init__(self, wish: Wish) -> None:
        self.wish = wish

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        counts = torch.bincount(input_ids[0, len(PROMPT) :], minlength=VOCAB)
        return scores - self.wish.frequency * counts - self.wish.presence * (counts > 0)


def row() -> Tensor:
    return torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(11))


def expected(wish: Wish) -> Tensor:
    """Probabilities [VOCAB] by transformers, its processors in generate's order."""
    made = LogitsProcessorList()
    if wish.bias:
        made.append(SequenceBiasLogitsProcessor([[[token], b] for token, b in wish.bias]))
    if wish.repetition != 1:
        made.append(RepetitionPenaltyLogitsProcessor(wish.repetition))
    made.append(OpenAiPenalties(wish))
    if wish.banned:
        made.append(SuppressTokensLogitsProcessor(list(wish.banned), device="cpu"))
    made.append(TemperatureLogitsWarper(wish.temperature))
    if wish.top_k:
        made.append(TopKLogitsWarper(wish.top_k))
    if wish.top_p < 1:
        made.append(TopPLogitsWarper(wish.top_p))
    made.append(MinPLogitsWarper(wish.min_p))
    if wish.typical_p < 1:
        made.append(TypicalLogitsWarper(wish.typical_p))
    known = torch.tensor([PROMPT + ANSWER])
    return made(known, row().double()).softmax(-1)[0]


def entering(wish: Wish) -> NewSequence:
    sequence = greedy(PROMPT)
    sequence.slot, sequence.tokens = 0, ANSWER
    sampling = sequence.sampling
    sampling.temperature, sampling.top_k, sampling.top_p = wish.temperature, wish.top_k, wish.top_p
    sampling.min_p, sampling.typical_p = wish.min_p, wish.typical_p
    sampling.penalties.repetition = wish.repetition
    sampling.penalties.frequency = wish.frequency
    sampling.penalties.presence = wish.presence
    sampling.banned_token_ids.extend(wish.banned)
    for token, bias in wish.bias:
        sampling.logit_bias.token_ids.append(token)
        sampling.logit_bias.values.append(bias)
    new = new_sequence(sequence, 0, [])
    ids = np.array(new.token_ids, np.int32)
    return NewSequence(0, ids, new.generated, 0, {}, to_sampling(new.sampling))


def draw(wish: Wish) -> Tensor:
    """DRAWS tokens, each of a slot of its own with another seed, by the worker's parameters."""
    params = SlotParams(Limits(DRAWS, 1, 64, 16, (KvPool(4),), VOCAB), torch.device("cpu"))
    new = entering(wish)
    params.enter(new)
    rows = np.array([new.sampling.slot_row()] * DRAWS, SLOT_PARAMS)
    rows["seed"] = np.arange(DRAWS)
    places = row_places(np.arange(DRAWS, dtype=np.int32), column_length(DRAWS))
    params.numbers[torch.from_numpy(places).long()] = torch.from_numpy(row_words(rows))
    first = torch.zeros(1, dtype=torch.int64)
    adjusted = process_logits(row(), first, first, params.params).expand(DRAWS, -1).contiguous()
    positions = torch.full((DRAWS,), 10)
    return choose(adjusted, torch.arange(DRAWS), positions, params.columns, filtered=True)[0]


@pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES)
def test_samples_follow_the_distribution(wish: Wish) -> None:
    """Pearson's chi-square against the exact probabilities."""
    probabilities = expected(wish)
    counts = torch.bincount(draw(wish), minlength=VOCAB).double()
    assert counts[probabilities == 0].sum() == 0
    # Tokens too rare for the test's approximation are one class.
    rare = probabilities * DRAWS < 5
    means = torch.cat([probabilities[~rare], probabilities[rare].sum()[None]]) * DRAWS
    found = torch.cat([counts[~rare], counts[rare].sum()[None]])
    statistic = float(((found - means) ** 2 / means.clamp(min=1e-9)).sum())
    freedom = int((means > 0).sum()) - 1
    assert freedom >= 3
    # Wilson and Hilferty's cube: beyond 4 standard deviations once in 30,000 times.
    cube = (statistic / freedom) ** (1 / 3)
    assert (cube - 1 + 2 / (9 * freedom)) / (2 / (9 * freedom)) ** 0.5 < 4


def test_expected_distributions_differ() -> None:
    plain = expected(Wish())
    for wish in WISHES.values():
        assert float((expected(wish) - plain).abs().sum()) > 0.03

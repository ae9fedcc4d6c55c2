"""Sampling parameters of a sequence, and the row of numbers that its slot has on the device.

The router has checked their ranges. The checks of `sampling_error` prevent accesses outside a table
on the device, and steps or replies that need too much memory.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

GREEN_BITS = 32  # of a token's random number

MOST_LOGPROBS = 20  # alternatives of one token
WHOLE_VOCABULARY = (1 << 32) - 1  # of a prompt's token: as many alternatives as there are
MOST_LOGPROB_TOKEN_IDS = 128  # bounds what a step computes and sends
MOST_STOP_IDS = 256  # of one sequence: they bound a step's buffer
# Of one sequence: they bound a row of the device's tables.
MOST_BIASES = 1024
MOST_BAD_WORDS = 256
WORD_TOKENS = 16  # of the longest bad word

ANY_NUMBER = 1 << 32  # of token ids: the vocabulary bounds them

# The parameters of a slot that are single numbers. The device holds them column by column
# (`worker.sampling`); 64-bit columns come first. The columns after `green` and after
# `repetition` are in the order in which `penstock_kernels.process_logits` reads them.
SLOT_PARAMS = np.dtype(
    [
        ("seed", np.int64),
        ("bad_words", np.int64),  # number of them
        ("biases", np.int64),  # number of them
        ("restricted", np.int64),  # 1 if not every token is allowed
        ("green", np.int64),  # a token is green if its random number is below this
        ("key", np.int64),  # of the watermark
        ("top_k", np.int32),
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("typical_p", np.float32),
        ("repetition", np.float32),
        ("frequency", np.float32),
        ("presence", np.float32),
        ("delta", np.float32),  # of the watermark
    ]
)
SlotParamsArray = npt.NDArray[np.void]


@dataclass(frozen=True)
class Watermark:
    """Which tokens are green, and what is added to their logits."""

    gamma: float  # share of green tokens
    delta: float
    key: int  # as signed 64 bits


class SamplerVariant(enum.IntEnum):
    """A variant of the sampler. Each includes those before it, so a step runs the largest one that
    any of its rows needs."""

    PLAIN = 0  # temperature, top_k, top_p
    FILTERED = 1  # min_p and typical_p too
    PROCESSED = 2  # logits processors too


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters and logprob options of one sequence.

    The order in which parameters apply is in `worker.sampling`. The router checked all ranges.
    """

    temperature: float = 0.0  # 0 = greedy
    top_k: int = 0  # 0 = off
    top_p: float = 1.0  # 1 = off
    min_p: float = 0.0  # 0 = off
    typical_p: float = 1.0  # 1 = off
    repetition: float = 1.0  # 1 = off
    frequency: float = 0.0  # 0 = off
    presence: float = 0.0  # 0 = off
    seed: int = 0  # as signed 64 bits
    min_tokens: int = 0
    stop_token_ids: Longs = field(default_factory=lambda: np.zeros(0, np.int64))
    bias: tuple[Ints, Floats] | None = None  # token ids, each once, and what is added
    allowed: Ints | None = None  # the only possible tokens; None = all
    banned: Ints | None = None  # impossible tokens
    bad_words: tuple[Ints, ...] = ()  # 2 tokens or more each, that never follow one another
    watermark: Watermark | None = None
    top_logprobs: int = 0  # per generated token
    prompt_logprobs: int | None = None  # per prompt token
    logprob_token_ids: Ints | None = None  # reported with each generated token; None = none

    @property
    def counts(self) -> bool:
        """Whether a penalty needs token counts."""
        return (self.repetition, self.frequency, self.presence) != (1.0, 0.0, 0.0)

    @property
    def sampler_variant(self) -> SamplerVariant:
        """The smallest sampler variant that suffices for this sequence."""
        changes = self.bias, self.allowed, self.banned, self.watermark
        if self.counts or self.bad_words or any(change is not None for change in changes):
            return SamplerVariant.PROCESSED
        filtered = self.min_p != 0 or self.typical_p != 1
        return SamplerVariant.FILTERED if filtered else SamplerVariant.PLAIN

    def slot_row(self) -> tuple[float, ...]:
        """The values of SLOT_PARAMS."""
        mark = self.watermark or Watermark(0.0, 0.0, 0)
        restricted = self.allowed is not None or self.banned is not None
        biases = 0 if self.bias is None else len(self.bias[0])
        green = round(mark.gamma * (1 << GREEN_BITS))
        return (
            self.seed, len(self.bad_words), biases, restricted, green, mark.key, self.top_k,
            self.temperature, self.top_p, self.min_p, self.typical_p, self.repetition,
            self.frequency, self.presence, mark.delta,
        )  # fmt: skip


def sampling_error(sampling: SamplingParams, vocab: int) -> str | None:
    """Returns why these parameters are refused, or None."""
    top, prompt = sampling.top_logprobs, sampling.prompt_logprobs or 0
    most = top if prompt == WHOLE_VOCABULARY else max(top, prompt)
    if most > MOST_LOGPROBS:
        return (
            f"log-probabilities of {most} tokens were requested; at most {MOST_LOGPROBS} are sent"
        )
    return _lists_error(sampling, vocab) or _bad_words_error(sampling, vocab)


def _lists_error(sampling: SamplingParams, vocab: int) -> str | None:
    ids, values = sampling.bias or ((), ())
    if len(ids) != len(values):
        return f"the logit bias has {len(ids)} tokens and {len(values)} values"
    lists: tuple[tuple[str, npt.ArrayLike | None, int], ...] = (
        ("logprob token id", sampling.logprob_token_ids, MOST_LOGPROB_TOKEN_IDS),
        ("stop token id", sampling.stop_token_ids, MOST_STOP_IDS),
        ("logit bias token id", ids, MOST_BIASES),
        ("allowed token id", sampling.allowed, ANY_NUMBER),
        ("banned token id", sampling.banned, ANY_NUMBER),
    )
    for name, given, most in lists:
        if error := _token_ids_error(name, given, most, vocab):
            return error
    return None


def _token_ids_error(name: str, given: npt.ArrayLike | None, most: int, vocab: int) -> str | None:
    numbers = np.asarray(() if given is None else given)
    if len(numbers) > most:
        return f"{len(numbers)} {name}s were given; at most {most} are possible"
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < vocab:
        return f"{name} {numbers.max()} is outside the vocabulary of {vocab}"
    return None


def _bad_words_error(sampling: SamplingParams, vocab: int) -> str | None:
    words = sampling.bad_words
    if len(words) > MOST_BAD_WORDS:
        return f"there are {len(words)} bad words; at most {MOST_BAD_WORDS} are possible"
    for word in words:
        if not 2 <= len(word) <= WORD_TOKENS:
            return f"a bad word has {len(word)} tokens; 2 to {WORD_TOKENS} are possible"
        if error := _token_ids_error("bad word token id", word, WORD_TOKENS, vocab):
            return error
    return None

"""What a sequence may ask of its logits."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from penstock.worker.protocol.step import Ints, LogitsProcessors, Sampling

MOST_LOGPROBS = 20  # alternatives of one token
WHOLE_VOCABULARY = (1 << 32) - 1  # of a prompt's token: as many alternatives as there are
MOST_LOGPROB_TOKEN_IDS = 128  # bounds what a step computes and sends
MOST_STOP_IDS = 256  # of one sequence: they bound a step's buffer
# Of one sequence: they bound a row of the device's tables.
MOST_BIASES = 1024
MOST_BAD_WORDS = 256
WORD_TOKENS = 16  # of the longest bad word


def sampling_error(sampling: Sampling, vocab: int) -> str | None:
    """Returns why these parameters are refused, or None."""
    if not 0 <= sampling.temperature < math.inf:
        return f"temperature must be a number >= 0, found {sampling.temperature}"
    if not 0 < sampling.top_p <= 1:
        return f"top_p must be above 0 and at most 1, found {sampling.top_p}"
    return (
        _logprobs_error(sampling, vocab)
        or _stop_token_ids_error(sampling.stop_token_ids, vocab)
        or _logits_processors_error(sampling.logits_processors, vocab)
    )


def _logprobs_error(sampling: Sampling, vocab: int) -> str | None:
    top, prompt = sampling.top_logprobs, sampling.prompt_logprobs or 0
    most = top if prompt == WHOLE_VOCABULARY else max(top, prompt)
    if most > MOST_LOGPROBS:
        return (
            f"log-probabilities of {most} tokens were requested; at most {MOST_LOGPROBS} are sent"
        )
    ids = sampling.logprob_token_ids
    if ids is not None and len(ids) > MOST_LOGPROB_TOKEN_IDS:
        limit = MOST_LOGPROB_TOKEN_IDS
        return f"{len(ids)} logprob_token_ids were given; at most {limit} are possible"
    if ids is not None and ids.max() >= vocab:
        return f"logprob token id {ids.max()} is outside the vocabulary of {vocab}"
    return None


def _logits_processors_error(logits_processors: LogitsProcessors | None, vocab: int) -> str | None:
    """Why this cannot be, or None."""
    if logits_processors is None:
        return None
    return (
        _numbers_error(logits_processors)
        or _token_ids_error(logits_processors, vocab)
        or _bad_words_error(logits_processors, vocab)
    )


def _stop_token_ids_error(stop_token_ids: npt.ArrayLike, vocab: int) -> str | None:
    """The same of the stop token ids of a sequence."""
    ids = np.asarray(stop_token_ids)
    if len(ids) > MOST_STOP_IDS:
        return f"{len(ids)} stop token ids were given; at most {MOST_STOP_IDS} are possible"
    if len(ids) and ids.max() >= vocab:
        return f"stop token id {ids.max()} is outside the vocabulary of {vocab}"
    return None


def _numbers_error(processors: LogitsProcessors) -> str | None:
    mark = processors.watermark
    for name, value, rule, holds in (
        ("min_p", processors.min_p, "from 0 to 1", 0 <= processors.min_p <= 1),
        ("typical_p", processors.typical_p, "above 0 and at most 1", 0 < processors.typical_p <= 1),
        ("repetition penalty", processors.repetition, "above 0", processors.repetition > 0),
        ("frequency penalty", processors.frequency, "a number", True),
        ("presence penalty", processors.presence, "a number", True),
        ("watermark gamma", mark.gamma if mark else 0.5, "between 0 and 1", _share(processors)),
        ("watermark delta", mark.delta if mark else 0, "a number", True),
    ):
        if not (holds and math.isfinite(value)):
            return f"{name} must be {rule}, found {value}"
    return None


def _share(processors: LogitsProcessors) -> bool:
    return processors.watermark is None or 0 < processors.watermark.gamma < 1


def _token_ids_error(processors: LogitsProcessors, vocab: int) -> str | None:
    bias_ids = processors.bias[0] if processors.bias is not None else None
    for name, ids in (
        ("logit bias", bias_ids),
        ("allowed", processors.allowed),
        ("banned", processors.banned),
    ):
        if ids is not None and len(ids) and not 0 <= ids.min() <= ids.max() < vocab:
            return f"{name} token id {ids.max()} is outside the vocabulary of {vocab}"
    if processors.bias is not None:
        ids, values = processors.bias
        if len(ids) != len(values) or len(set(ids.tolist())) != len(ids):
            return "the logit bias has no value, or more than one, for a token id"
        if len(ids) > MOST_BIASES:
            return f"the logit bias has {len(ids)} tokens; at most {MOST_BIASES} are possible"
        if not np.isfinite(values).all():
            return "the logit bias must hold numbers, and none that is infinite"
    if processors.allowed is not None and not len(
        np.setdiff1d(processors.allowed, or_none(processors.banned))
    ):
        return "no token is allowed"
    return None


def _bad_words_error(processors: LogitsProcessors, vocab: int) -> str | None:
    words = processors.bad_words
    if len(words) > MOST_BAD_WORDS:
        return f"there are {len(words)} bad words; at most {MOST_BAD_WORDS} are possible"
    for word in words:
        if not 2 <= len(word) <= WORD_TOKENS:
            return f"a bad word has {len(word)} tokens; 2 to {WORD_TOKENS} are possible"
        if not 0 <= word.min() <= word.max() < vocab:
            return f"bad word token id {word.max()} is outside the vocabulary of {vocab}"
    return None


def or_none(ids: Ints | None) -> Ints:
    """These ids, or none."""
    return np.zeros(0, np.int32) if ids is None else ids

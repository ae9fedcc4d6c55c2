"""Limits of a sequence's sampling parameters.

The router has checked their ranges. The checks here prevent accesses outside a table on the device,
and steps or replies that need too much memory.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.worker.protocol.sampling_params import SamplingParams

MOST_LOGPROBS = 20  # alternatives of one token
WHOLE_VOCABULARY = (1 << 32) - 1  # of a prompt's token: as many alternatives as there are
MOST_LOGPROB_TOKEN_IDS = 128  # bounds what a step computes and sends
MOST_STOP_IDS = 256  # of one sequence: they bound a step's buffer
# Of one sequence: they bound a row of the device's tables.
MOST_BIASES = 1024
MOST_BAD_WORDS = 256
WORD_TOKENS = 16  # of the longest bad word

ANY_NUMBER = 1 << 32  # of token ids: the vocabulary bounds them


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

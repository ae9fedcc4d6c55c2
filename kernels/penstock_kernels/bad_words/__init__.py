"""Tokens that would complete a forbidden sequence of tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import FLOATS, expect, expect_rank, expect_rows
from ..op import Op
from . import reference
from .reference import ANY

__all__ = ["ANY", "bad_words"]

_OP = Op("bad_words", reference.bad_words, mutates=("logits", "recent"))


def bad_words(
    logits: Tensor, slots: Tensor, previous: Tensor, counts: Tensor, words: Tensor, recent: Tensor
) -> None:
    """Makes the last token of a word impossible where the tokens before it are the word's others.
    Then the previous token joins those of the row's slot. Both in place.

    A word of n tokens stands at the end of a row of L, after L - n times ANY. `recent` holds the
    L - 2 tokens before `previous`, the newest last. Slots without words are left alone.

    Args: logits [S, V] any float, rows may be strided; slots [S] int64, the row of the tables of
        each row; previous [S] int64, the token before the one to be chosen; counts [N] int64, words
        of each slot; words [N, M, L] int32, each of 2 tokens at least, L at least 3; recent
        [N, L - 2] int32, ANY where there is no token. A slot with words is in `slots` once.
    Bytes moved: 4 L for each word of the rows.
    Source: transformers' NoBadWordsLogitsProcessor, its part for words of several tokens.
    """
    expect_rank("logits", logits, "S, V")
    expect_rows("logits", logits)
    rows, vocabulary = logits.shape
    expect("logits", logits, (rows, vocabulary), FLOATS)
    expect("slots", slots, (rows,), (torch.int64,))
    expect("previous", previous, (rows,), (torch.int64,))
    expect_rank("words", words, "N, M, L")
    count, most, length = words.shape
    expect("counts", counts, (count,), (torch.int64,))
    expect("words", words, (count, most, length), (torch.int32,))
    expect("recent", recent, (count, length - 2), (torch.int32,))
    _OP.on(logits)(logits, slots, previous, counts, words, recent)

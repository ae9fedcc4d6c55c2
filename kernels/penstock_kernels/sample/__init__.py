"""Choice of the next token from logits."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import FLOATS, expect, expect_rank, expect_rows
from ..op import Op
from . import reference

_OP = Op("sample", reference.sample)


def sample(
    logits: Tensor,
    slots: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seed: Tensor,
    position: Tensor,
    min_p: Tensor | None = None,
    typical_p: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One token id per row, and its log-probability.

    Temperature 0 takes the largest logit, of equal ones the lowest id. Otherwise the choice is
    random with probabilities softmax(logits / temperature), kept to top_k, top_p, min_p and
    typical_p, in this order, each with the probabilities of what the one before kept:
    top_k keeps what is not below the k-th largest logit; top_p keeps the tokens above which less
    than top_p of the probability lies; min_p keeps what has at least min_p times the largest
    probability; typical_p keeps the tokens nearest to the entropy H, by |-log p - H|, the fewest
    that have typical_p of the probability. Tokens with equal logits are kept or dropped together.
    A draw takes first a group of 4,096 ids next to each other, by what is kept
    of its probability, and then a token of the group. The random numbers are a function of (seed,
    position, number of the group or id of the token) alone, so a row's choice does not depend on
    its neighbours nor on its place in the batch.

    Args: logits [S, V] any float, rows may be strided; slots [S] int64, the entry of each row in
        the parameters [N]; temperature [N] float32, 0 or more; top_k [N] int32, 0 = all; top_p [N]
        float32 in (0, 1], 1 = all; seed [N] int64; position [S] int64; min_p [N] float32 in [0, 1],
        0 = all, and typical_p [N] float32 in (0, 1], 1 = all: both or none.
    Returns: ids [S] int64; log-probabilities [S] float32 of those ids under log_softmax(logits),
        before temperature and what is kept.
    Precision: float32 inside.
    Bytes moved: S V elements, where some thousand tokens of a row or fewer are kept. Of more, two
        to eight passes over the row come on top (from the L2 cache), or one for each two bits of a
        logit.
    Source: random numbers, SplitMix64 of Steele, Lea and Flood, Fast Splittable Pseudorandom
        Number Generators, 2014; arg max of log p + Gumbel noise draws from p, Gumbel, 1954;
        typical_p, Meister and others, Locally Typical Sampling, 2022; min_p, Nguyen and others,
        Turning Up the Heat, 2024.
    """
    expect_rank("logits", logits, "S, V")
    expect_rows("logits", logits)
    expect("logits", logits, tuple(logits.shape), FLOATS)
    rows = (logits.shape[0],)
    expect("slots", slots, rows, (torch.int64,))
    expect("position", position, rows, (torch.int64,))
    entries = tuple(temperature.shape)
    expect("temperature", temperature, entries, (torch.float32,))
    expect("top_k", top_k, entries, (torch.int32,))
    expect("top_p", top_p, entries, (torch.float32,))
    expect("seed", seed, entries, (torch.int64,))
    if min_p is None or typical_p is None:
        return _OP.on(logits)(logits, slots, temperature, top_k, top_p, seed, position)
    expect("min_p", min_p, entries, (torch.float32,))
    expect("typical_p", typical_p, entries, (torch.float32,))
    return _OP.on(logits)(
        logits, slots, temperature, top_k, top_p, seed, position, min_p, typical_p
    )

"""From logits to token ids: pure functions of (logits, parameters, seed, position).

What a request may ask is applied in this order, transformers' where it has the same:

1. logit bias
2. repetition penalty, then frequency and presence penalty
3. what is impossible: by allowed and banned token ids, min_tokens, a grammar's mask
4. watermark
5. temperature, top_k, top_p, min_p, typical_p, each on what the one before it left

1 to 4 are `penstock_kernels.process_logits`, 5 is `penstock_kernels.sample`; the formulas are
there. transformers adds its watermark after 5; here it is on the model's logits, as in its paper.
Temperature 0 takes the likeliest token after 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from penstock_kernels import sample
from torch import Tensor


@dataclass(frozen=True)
class SamplerColumns:
    """Parameters of the slots that the sampler reads; tensors [N] on the device."""

    seed: Tensor  # int64
    top_k: Tensor  # int32; 0 = off
    temperature: Tensor  # float32; 0 = greedy
    top_p: Tensor  # float32; 1 = off
    min_p: Tensor  # float32; 0 = off
    typical_p: Tensor  # float32; 1 = off


def mask_tokens(logits: Tensor, rows: Tensor, ids: Tensor) -> None:
    """Makes token ids[i] impossible in row rows[i], in place."""
    logits[rows, ids] = -torch.inf


def choose(
    logits: Tensor, slots: Tensor, position: Tensor, columns: SamplerColumns, filtered: bool
) -> tuple[Tensor, Tensor]:
    """Token ids [R] int64 and their log-probabilities [R] float32 of logits [R, V].

    `slots` [R] int64 are the rows' entries in `columns`; `position` [R] int64, of the token to
    come, is the counter of the random numbers. Without `filtered`, min_p and typical_p are not
    read.

    Every rank has the same logits to the last bit, for they were gathered, and the choice is a pure
    function of them: so all ranks go on with the same tokens without a word between them.
    """
    return sample(
        logits,
        slots,
        columns.temperature,
        columns.top_k,
        columns.top_p,
        columns.seed,
        position,
        columns.min_p if filtered else None,
        columns.typical_p if filtered else None,
    )

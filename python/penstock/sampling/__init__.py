"""From logits to token ids: pure functions of (logits, parameters, seed, position).

Sampling parameters are applied in this order, which is that of transformers for those it has:

1. logit bias
2. repetition penalty, then frequency and presence penalty
3. impossible tokens: allowed and banned token ids, min_tokens, a grammar's mask
4. watermark
5. temperature, top_k, top_p, min_p, typical_p, each on the tokens that remain

`penstock_kernels.process_logits` implements 1 to 4, `penstock_kernels.sample` implements 5; they
document the formulas. transformers adds its watermark after 5; here it changes the model's logits,
as in its paper. Temperature 0 selects the most likely token after 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from penstock_kernels import sample
from torch import Tensor


@dataclass(frozen=True)
class SamplerColumns:
    """The slots' parameters that the sampler reads; tensors [N] on the device."""

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
    """Samples from logits [R, V]. Returns token ids [R] int64 and their logprobs [R] float32.

    `slots` [R] int64 are the rows' entries in `columns`; `position` [R] int64, of the new token, is
    the counter of the random numbers. Without `filtered`, min_p and typical_p are ignored.

    The gathered logits are bitwise equal on all ranks, and sampling is a pure function of them. So
    all ranks get the same tokens without communication.
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

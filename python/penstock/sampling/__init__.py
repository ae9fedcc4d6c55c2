"""From logits to token ids: pure functions of (logits, parameters, seed, position).

What a request may ask is applied in this order, transformers' where it has the same:

1. logit bias
2. repetition penalty, then frequency and presence penalty
3. what is impossible: by allowed and banned token ids, min_tokens, a guide's mask
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
class SamplingRows:
    """Parameters of the rows that yield a token; tensors [R] on the device."""

    temperature: Tensor  # float32; 0 = greedy
    top_k: Tensor  # int32; 0 = off
    top_p: Tensor  # float32; 1 = off
    seed: Tensor  # int64
    position: Tensor  # int64, of the token to come: the random numbers' counter
    min_p: Tensor | None = None  # float32; 0 = off
    typical_p: Tensor | None = None  # float32; 1 = off; given with min_p


def mask_tokens(logits: Tensor, rows: Tensor, ids: Tensor) -> None:
    """Makes token ids[i] impossible in row rows[i], in place."""
    logits[rows, ids] = -torch.inf


def choose(logits: Tensor, rows: SamplingRows) -> tuple[Tensor, Tensor]:
    """Token ids [R] int64 and their log-probabilities [R] float32.

    Every rank has the same logits to the last bit, for they were gathered, and the choice is a pure
    function of them: so all ranks go on with the same tokens without a word between them.
    """
    return sample(
        logits,
        rows.temperature,
        rows.top_k,
        rows.top_p,
        rows.seed,
        rows.position,
        rows.min_p,
        rows.typical_p,
    )

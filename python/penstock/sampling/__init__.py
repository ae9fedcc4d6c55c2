"""From logits to token ids: pure functions of (logits, parameters, seed, position)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from penstock_kernels import sample
from torch import Tensor

from penstock.parallel import Group


@dataclass(frozen=True)
class SamplingRows:
    """Parameters of the rows that yield a token; tensors [R] on the device."""

    temperature: Tensor  # float32; 0 = greedy
    top_k: Tensor  # int32; 0 = off
    top_p: Tensor  # float32; 1 = off
    seed: Tensor  # int64
    position: Tensor  # int64, of the token to come: the random numbers' counter


def mask_tokens(logits: Tensor, rows: Tensor, ids: Tensor) -> None:
    """Makes token ids[i] impossible in row rows[i], in place."""
    logits[rows, ids] = -torch.inf


def choose(logits: Tensor, rows: SamplingRows, group: Group) -> tuple[Tensor, Tensor]:
    """Token ids [R] int64 and their log-probabilities [R] float32.

    Rank 0 samples; the others get its ids on the device, so that all go on with the same tokens.
    Log-probabilities are meaningful on rank 0 only.
    """
    if group.rank == 0:
        ids, logprobs = sample(
            logits, rows.temperature, rows.top_k, rows.top_p, rows.seed, rows.position
        )
    else:
        ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        logprobs = torch.zeros(len(logits), dtype=torch.float32, device=logits.device)
    return group.from_first(ids), logprobs

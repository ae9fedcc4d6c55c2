"""Multi-head latent attention to the last tokens (Dots3-Note)."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.config import AttentionSpec, ResidualSpec
from penstock.layers.attention import StepContext
from penstock.layers.base import Build
from penstock.layers.latent_attention import HeadGatedLatentAttention
from penstock.layers.listed_rows import Listed, attend_listed
from penstock.layers.step_rows import last_rows


class WindowLatentAttention(HeadGatedLatentAttention):
    """As HeadGatedLatentAttention; a query attends to its window alone. The rows of the window are
    listed for each query, because blocks before it may be another sequence's."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        super().__init__(build, residual, spec, index)
        self.window = spec.window

    def attend_rows(self, q: Tensor, context: StepContext, out: Tensor) -> None:
        """As `LatentAttention.attend_rows`."""
        places, cache = context.places[self.index], context.kv_cache(self.index).data
        last = last_rows(context, places, self.window, cache.shape[3])
        tokens = cache.view(-1, 1, 1, 1, cache.shape[-1])
        own = torch.arange(len(q), dtype=torch.int32, device=q.device)
        attend_listed(q, Listed(tokens, last.rows, own, last.counts), self.scale, out, self.sinks)

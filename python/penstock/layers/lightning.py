"""Lightning attention (arXiv:2401.04658): linear attention over states that decay by constants.

Ranks share the heads; the norm over all of them adds up its squares over the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from penstock_kernels import selective_scan
from penstock_kernels.recurrence import Runs
from torch import Tensor

from penstock.cache import StateCache
from penstock.config import LightningSpec, ResidualSpec
from penstock.layers.attention import StepContext
from penstock.layers.base import Build
from penstock.layers.linear import ColumnLinear, RowLinear
from penstock.layers.norm import FullWidthNorm
from penstock.layers.recurrent import Recurrent, by_kind

# Each token is one step of the recurrence of Mamba-2.
STEP = (1.0, 1.0)


class LightningAttention(Recurrent):
    """Layer `index`: projections, SiLU of queries, keys and values, the recurrence, a norm over all
    heads, a gate and the output projection."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: LightningSpec, index: int
    ) -> None:
        self.index = index
        self.heads = build.group.share(spec.heads, spec.shared[0])
        self.head_dim = spec.head_dim
        inner = spec.heads * spec.head_dim
        parts = {"qkv": 3 * inner, "gate": inner}
        self.inputs = ColumnLinear(build.below("inputs"), parts, residual, False)
        self.norm = FullWidthNorm(build, inner, spec.norm, build.group.own)
        self.output = RowLinear(build.below("output"), residual, inner, False)
        first = build.group.rank * self.heads
        wide = torch.promote_types(build.dtype, torch.float32)
        decays = torch.tensor(
            spec.decays[first : first + self.heads], dtype=wide, device=build.device
        )
        none = torch.zeros_like(decays)
        self.per_head = decays.log(), none, none  # no bias of steps, and nothing skips the state
        self.step = none[None].to(build.dtype)  # STEP says what it is

    def finish(self) -> None:
        """Puts all queries before all keys, and these before all values; checkpoints store them by
        head."""
        order = by_kind(self.heads, [self.head_dim] * 3, self.step.device)
        gates = torch.arange(len(order), self.inputs.outputs, device=order.device)
        self.inputs.reorder(torch.cat((order, gates)))

    def mix(self, x: Tensor, context: StepContext, rows: Tensor | None) -> Tensor:
        """x [T, hidden] -> the input of `output` [T, this rank's channels], or [R, channels] of
        `rows`."""
        inputs = self.inputs.product(x)
        inner = self.heads * self.head_dim
        gate = inputs[:, 3 * inner :]
        out = inputs.new_empty((len(inputs), self.heads, self.head_dim))
        self.run([F.silu(inputs[:, : 3 * inner]), out], context)
        if rows is not None:
            out, gate = out.index_select(0, rows), gate.index_select(0, rows)
        return self.norm.heads(out).flatten(1).mul_(gate.sigmoid())

    def recur(self, tokens: Sequence[Tensor], cache: StateCache, runs: Runs) -> None:
        """Runs tokens: queries, keys and values side by side, the output."""
        qkv, out = tokens
        assert cache.memory is not None
        q, k, v = qkv.unflatten(1, (3, self.heads, self.head_dim)).unbind(1)
        step = self.step.expand(len(qkv), -1)
        selective_scan(v, k, q, step, self.per_head, cache.memory, runs, STEP, out)

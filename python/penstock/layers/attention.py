"""Grouped-query attention over the paged KV cache."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from penstock.attention import KvScales, StepContext, attend
from penstock.config import AttentionSpec, PositionScale, ResidualSpec
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.linear import ColumnLinear, RowLinear
from penstock.layers.norm import Norm, normed_heads, qk_norm_of
from penstock.layers.rope import rope_order
from penstock.weights import Target


class SelfAttention(Layer, ABC):
    """What attention reads of the stream and adds to it; subclasses attend."""

    qkv: ColumnLinear
    out: RowLinear

    def __call__(
        self, norm: Norm, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """Returns the stream after this layer, [T, hidden]; `norm` precedes the layer.

        Writes this step's keys and values. With `rows` [R], returns these rows alone, [R, hidden].
        """
        qkv, total = self.qkv(norm, residual)
        mixed = self.mix(qkv, context)
        if rows is not None:
            mixed, total = mixed.index_select(0, rows), total.index_select(0, rows)
        return self.out(mixed, total)

    def product(self, x: Tensor, context: StepContext, rows: Tensor | None = None) -> Tensor:
        """Returns the output for a normalised x, both [T, hidden]; a partial sum with several
        ranks."""
        mixed = self.mix(self.qkv.product(x), context)
        return self.out.product(mixed if rows is None else mixed.index_select(0, rows))

    @abstractmethod
    def mix(self, qkv: Tensor, context: StepContext) -> Tensor:
        """Attends: the output of `qkv` [T, ...] -> the input of `out` [T, ...]."""


class Attention(SelfAttention):
    """Self-attention of layer `index`: fused q, k, v; rotary positions; output projection."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        self.index = index
        self.group = build.group
        self.heads = build.group.share(spec.heads, "num_attention_heads")
        self.kv_heads = build.group.share(spec.kv_heads, "num_key_value_heads")
        self.head_dim = spec.head_dim
        self.split = [self.heads, self.kv_heads, self.kv_heads]
        self.scale = spec.scale
        self.window = spec.window
        self.softcap = spec.softcap
        self.sinks = build.empty(self.heads, dtype=torch.float32) if spec.sinks else None
        self.kv_scales: KvScales | None = None
        self.rope = spec.rope
        self.cos_sin = build.rope_table(spec.rope, spec.head_dim)
        queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        parts = {"q": queries, "k": keys, "v": keys}
        self.qkv = ColumnLinear(build.below("qkv"), parts, residual, spec.qkv_bias)
        self.out = RowLinear(build.below("out"), residual, queries, spec.output_bias)

    def scale_cache(self, scales: KvScales) -> None:
        """Stores keys and values divided by `scales` from now on. At most once."""
        self.kv_scales = scales
        self.scale *= scales.key

    def targets(self) -> dict[str, Target]:
        """Returns the targets of the sinks of this rank's heads."""
        if self.sinks is None:
            return {}
        return {"sinks": Target.share(self.sinks, 0, self.group.rank, self.group.size)}

    def finish(self) -> None:
        """Permutes the dimensions of queries and keys into the pairs that the kernels rotate."""
        order = rope_order(self.rope, self.head_dim)
        if order is not None:
            within = torch.tensor(order, device=self.cos_sin.device)
            self._reorder(within)

    def _reorder(self, within: Tensor) -> None:
        whole = torch.arange(self.qkv.outputs, device=within.device).view(-1, self.head_dim)
        rotated = self.heads + self.kv_heads
        whole[:rotated] = whole[:rotated, within]
        self.qkv.reorder(whole.view(-1))

    def mix(self, qkv: Tensor, context: StepContext) -> Tensor:
        """Attends: this rank's q, k and v side by side [T, ...] -> [T, heads * head_dim]."""
        heads = qkv.view(len(qkv), -1, self.head_dim)
        q, k, v = torch.split(heads, self.split, dim=1)
        return attend(q, k, v, self, context).view(len(qkv), -1)


class NormedAttention(Attention):
    """Attention that normalises queries and keys before RoPE."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        super().__init__(build, residual, spec, index)
        assert spec.qk_norm is not None
        self.q_norm = qk_norm_of(build, spec.qk_norm, spec.heads, spec.head_dim)
        self.k_norm = qk_norm_of(build, spec.qk_norm, spec.kv_heads, spec.head_dim)

    def _reorder(self, within: Tensor) -> None:
        super()._reorder(within)
        self.q_norm.reorder(within)
        self.k_norm.reorder(within)

    def mix(self, qkv: Tensor, context: StepContext) -> Tensor:
        """As `Attention.mix`, with normalised queries and keys."""
        heads = qkv.view(len(qkv), -1, self.head_dim)
        q, k, v = torch.split(heads, self.split, dim=1)
        q, k = normed_heads(q, k, self.q_norm, self.k_norm)
        return attend(q, k, v, self, context).view(len(qkv), -1)


class PositionScaledAttention(Attention):
    """Attention whose queries have a factor by position."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: AttentionSpec, index: int
    ) -> None:
        super().__init__(build, residual, spec, index)
        assert spec.position_scale is not None
        self.factors = _factors(spec.position_scale, build.positions).to(build.device, build.dtype)

    def mix(self, qkv: Tensor, context: StepContext) -> Tensor:
        """As `Attention.mix`, with scaled queries."""
        heads = qkv.view(len(qkv), -1, self.head_dim)
        q, k, v = torch.split(heads, self.split, dim=1)
        factors = self.factors.index_select(0, context.positions)
        return attend(q * factors[:, None, None], k, v, self, context).view(len(qkv), -1)


def _factors(scale: PositionScale, positions: int) -> Tensor:
    """[positions] float32, in transformers' order of operations."""
    turns = torch.floor(torch.arange(positions) / scale.original)
    return 1 + scale.beta * torch.log(1 + turns)

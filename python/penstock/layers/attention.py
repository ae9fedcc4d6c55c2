"""Grouped-query attention over the paged KV cache."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.attention import StepContext, attend
from penstock.config import AttentionSpec
from penstock.layers.base import Build, Layer
from penstock.layers.linear import ColumnLinear, RowLinear
from penstock.layers.norm import RmsNorm
from penstock.layers.residual import Residual


class Attention(Layer):
    """Self-attention of layer `index`: fused q, k, v; rotary positions; output projection."""

    def __init__(self, build: Build, hidden: int, spec: AttentionSpec, index: int) -> None:
        self.index = index
        self.heads = build.group.share(spec.heads, "num_attention_heads")
        self.kv_heads = build.group.share(spec.kv_heads, "num_key_value_heads")
        self.head_dim = spec.head_dim
        self.split = [self.heads, self.kv_heads, self.kv_heads]
        self.scale = spec.scale
        self.window = spec.window
        self.cos_sin = build.rope_table(spec.rope, spec.head_dim)
        queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        self.qkv = ColumnLinear(build, {"q": queries, "k": keys, "v": keys}, hidden, spec.qkv_bias)
        self.out = RowLinear(build, hidden, queries, spec.output_bias)

    def __call__(
        self, norm: RmsNorm, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """Returns the stream after this layer, [T, hidden]; `norm` precedes the layer.

        Writes this step's keys and values. With `rows` [R], returns these rows alone, [R, hidden].
        """
        qkv, total = self.qkv(norm, residual)
        heads = qkv.view(len(qkv), -1, self.head_dim)
        q, k, v = torch.split(heads, self.split, dim=1)
        mixed = attend(q, k, v, self, context).view(len(qkv), -1)
        if rows is not None:
            mixed, total = mixed.index_select(0, rows), total.index_select(0, rows)
        return self.out(mixed, total)

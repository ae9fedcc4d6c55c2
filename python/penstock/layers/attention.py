"""Grouped-query attention over the paged KV cache."""

from __future__ import annotations

import torch
from penstock_kernels.rms_norm import NormInput
from torch import Tensor

from penstock.attention import StepContext, attend
from penstock.config import ModelConfig
from penstock.layers.base import Build, Layer
from penstock.layers.linear import ColumnLinear, RowLinear


class Attention(Layer):
    """Self-attention of layer `index`: fused q, k, v; rotary positions; output projection."""

    def __init__(self, build: Build, config: ModelConfig, index: int) -> None:
        self.index = index
        self.heads = build.group.share(config.heads, "num_attention_heads")
        self.kv_heads = build.group.share(config.kv_heads, "num_key_value_heads")
        self.head_dim = config.head_dim
        self.split = [self.heads, self.kv_heads, self.kv_heads]
        self.scale = config.head_dim**-0.5
        self.window = config.windows[index]
        queries, keys = config.heads * self.head_dim, config.kv_heads * self.head_dim
        parts = {"q": queries, "k": keys, "v": keys}
        self.qkv = ColumnLinear(build, parts, config.hidden, config.qkv_bias)
        self.out = RowLinear(build, config.hidden, queries, config.output_bias)

    def __call__(
        self, norm_input: NormInput, context: StepContext, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """([T, hidden] of the normalised sum, the sum), or what both add up to and None.

        Writes this step's keys and values. With `rows` [R], of these alone: [R, hidden] each.
        """
        qkv, total = self.qkv(norm_input)
        heads = qkv.view(len(qkv), -1, self.head_dim)
        q, k, v = torch.split(heads, self.split, dim=1)
        mixed = attend(q, k, v, self, context).view(len(qkv), -1)
        if rows is not None:
            mixed, total = mixed.index_select(0, rows), total.index_select(0, rows)
        return self.out(mixed, total)

"""Transformers whose weights several places of a model share (Zamba, arXiv:2405.16712; Zamba2,
arXiv:2411.15242).

A place has a KV cache, a matrix behind the transformer, and in Zamba2 adapters, all of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from penstock_kernels import act_mul, linear
from torch import Tensor

from penstock.config import AttentionSpec, LayerSpec, MlpSpec, PlaceSpec, ResidualSpec
from penstock.layers.attention import KvScales, StepContext, attend
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.linear import ColumnLinear, RowLinear, column_targets
from penstock.layers.norm import norm_of
from penstock.parallel import Share
from penstock.quant import WeightTensor
from penstock.weights import Target


class SharedTransformer(Layer):
    """The weights of attention and of a feed-forward layer, without adapters."""

    def __init__(self, build: Build, residual: ResidualSpec, layer: LayerSpec) -> None:
        attention, mlp = layer.attention, layer.mlp
        assert isinstance(attention, AttentionSpec) and isinstance(mlp, MlpSpec)
        inner, kv = (n * attention.head_dim for n in (attention.heads, attention.kv_heads))
        wide = replace(residual, hidden=2 * residual.hidden)  # hidden state and embedding
        shares = dict.fromkeys("kv", build.group.kv_share(attention.kv_heads))
        parts = {"q": inner, "k": kv, "v": kv}
        self.attention_norm = norm_of(build, wide.hidden, residual.norm)
        self.qkv = ColumnLinear(build.below("qkv"), parts, wide, False, shares=shares)
        self.out = RowLinear(build.below("out"), residual, inner, False)
        self.mlp_norm = norm_of(build, residual.hidden, residual.norm)
        both = dict.fromkeys(("gate", "up"), mlp.intermediate)
        self.gate_up = ColumnLinear(build.below("gate_up"), both, residual, mlp.bias)
        self.down = RowLinear(build.below("down"), residual, mlp.intermediate, mlp.bias)


class Adapter(Layer):
    """What a place adds to a shared product: its inputs times two matrices of low rank (LoRA,
    arXiv:2106.09685).

    They are floats in every weight format. Every rank has all of the first matrix, and its outputs
    of the second one.
    """

    def __init__(self, build: Build, rank: int, product: ColumnLinear, inputs: int) -> None:
        """`product`: of `inputs`. Its parts have two matrices each, but gate and up have the same
        ones."""
        self.product, self.group, self.rank = product, build.group, rank
        self.names = ["all"] if "gate" in product.parts else list(product.parts)
        self.narrow = build.empty(len(self.names) * rank, inputs)
        self.widen = build.empty(product.outputs, rank)

    def children(self) -> Iterator[tuple[str, Layer]]:
        """None: the product is not this layer's."""
        yield from ()

    def targets(self) -> dict[str, Target]:
        """Returns the targets of both matrices of each part."""
        first = zip(self.names, self.narrow.split(self.rank), strict=True)
        stored = {"weight": WeightTensor(self.widen, 0, None)}
        parts = self.product.parts, stored, None, self.group, self.product.shares
        found = {f"narrow.{name}.weight": Target.whole(rows) for name, rows in first}
        return found | {f"widen.{name}": one for name, one in column_targets(*parts).items()}

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, inputs] -> the adapted product [T, this rank's outputs]."""
        out, few = self.product.product(x), linear(x, self.narrow, None)
        if len(self.names) == 1:
            return out.addmm_(few, self.widen.t())
        sizes = list(self.product.parts.values())
        parts = out.split(sizes, 1), few.split(self.rank, 1), self.widen.split(sizes)
        for outputs, inputs, matrix in zip(*parts, strict=True):
            outputs.addmm_(inputs, matrix.t())
        return out


class Place(Layer):
    """One place of a shared transformer, whose attention is layer `index`."""

    def __init__(
        self,
        build: Build,
        residual: ResidualSpec,
        layer: LayerSpec,
        index: int,
        shared: SharedTransformer,
    ) -> None:
        attention, mlp, place = layer.attention, layer.mlp, layer.place
        assert isinstance(attention, AttentionSpec) and isinstance(mlp, MlpSpec)
        assert isinstance(place, PlaceSpec)
        self.shared = shared
        self.partial = build.group.size > 1
        self.qkv: Adapter | ColumnLinear = shared.qkv
        self.gate_up: Adapter | ColumnLinear = shared.gate_up
        hidden = residual.hidden
        if place.adapts_attention:
            self.qkv = Adapter(build, place.rank, shared.qkv, 2 * hidden)
        if place.rank:
            self.gate_up = Adapter(build, place.rank, shared.gate_up, hidden)
        self.activation = mlp.activation.value
        # It multiplies partial sums, so every rank has the whole of it.
        whole = {"all": Share()}
        self.output = ColumnLinear(
            build.below("output"), {"all": hidden}, residual, False, shares=whole
        )
        # What the attention kernels need to know: see `AttentionShape`.
        self.index, self.head_dim = index, attention.head_dim
        self.scale, self.window, self.aligned = attention.scale, attention.window, False
        self.softcap = 0.0
        self.sinks: Tensor | None = None
        self.slopes: Tensor | None = None
        self.kv_scales: KvScales | None = None
        self.cos_sin = build.rope_table(attention.rope, attention.head_dim)
        shared_kv = build.group.kv_share(attention.kv_heads).count
        heads, kv = attention.heads // build.group.size, attention.kv_heads // shared_kv
        self.split = [heads, kv, kv]

    def children(self) -> Iterator[tuple[str, Layer]]:
        """Without the weights that other places share."""
        theirs = self.shared, self.shared.qkv, self.shared.gate_up
        return (child for child in super().children() if child[1] not in theirs)

    def __call__(self, total: Tensor, context: StepContext) -> Tensor:
        """total [T, hidden], the residual stream -> [T, hidden]; a partial sum with several
        ranks."""
        assert context.embeddings is not None
        shared, both = self.shared, torch.cat((total, context.embeddings), 1)
        x, _ = shared.attention_norm(Residual(both, None, False))
        heads = _product(self.qkv, x).view(len(x), -1, self.head_dim)
        q, k, v = heads.split(self.split, 1)
        mixed = attend(q, k, v, self, context).view(len(x), -1)
        x, _ = shared.mlp_norm(Residual(shared.out.product(mixed), None, self.partial))
        gated = act_mul(_product(self.gate_up, x), self.activation)
        return self.output.product(shared.down.product(gated))


def _product(matrix: Adapter | ColumnLinear, x: Tensor) -> Tensor:
    return matrix(x) if isinstance(matrix, Adapter) else matrix.product(x)

"""One layer of the decoder: attention, then feed-forward, with norms around them."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from penstock.config import (
    AttentionSpec,
    CcaSpec,
    ConvolutionsSpec,
    Gate,
    KimiDeltaSpec,
    LatentSpec,
    LayerSpec,
    LightningSpec,
    Mamba1Spec,
    Mamba2Spec,
    MlpSpec,
    MoeSpec,
    NgramSpec,
    Placement,
    RecurrentSpec,
    ResidualSpec,
    RgLruSpec,
    ShortConvSpec,
    Specification,
)
from penstock.faults import BadModel
from penstock.layers.attention import (
    Attention,
    ClippedAttention,
    GatedAttention,
    HeadGatedAttention,
    HeadSigmoidAttention,
    NarrowValueAttention,
    NormedAttention,
    PositionScaledAttention,
    QueryGatedAttention,
    ReadingAttention,
    RotatedNormAttention,
    SelfAttention,
    StepContext,
    ValueNormedAttention,
)
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.block_indexed_attention import (
    BlockIndexedAttention,
    GatedBlockIndexedAttention,
)
from penstock.layers.delta_net import DeltaNet
from penstock.layers.experts import MoeMlp
from penstock.layers.hash_experts import HashMoeMlp
from penstock.layers.indexed_attention import (
    GatedIndexedAttention,
    HeadGatedIndexedAttention,
    IndexedLatentAttention,
)
from penstock.layers.kimi_delta import KimiDelta
from penstock.layers.latent_attention import HeadGatedLatentAttention, LatentAttention
from penstock.layers.lightning import LightningAttention
from penstock.layers.mamba import Mamba2
from penstock.layers.mamba1 import Mamba1
from penstock.layers.mlp import GatedMlp, Mlp, dense_mlp
from penstock.layers.norm import Norm, norm_of
from penstock.layers.own_norm_experts import OwnNormMoeMlp
from penstock.layers.pooled_indexer import PooledLatentAttention
from penstock.layers.recurrent import Recurrent
from penstock.layers.rg_lru import RgLru
from penstock.layers.shared_key_attention import SharedKeyAttention
from penstock.layers.short_conv import ShortConv
from penstock.layers.weighed_experts import WeighedMoeMlp
from penstock.layers.window_latent_attention import WindowLatentAttention


def attention_of(
    build: Build, residual: ResidualSpec, spec: AttentionSpec | RecurrentSpec, index: int
) -> SelfAttention | SharedKeyAttention | Recurrent:
    """Builds the attention of a specification. Raises BadModel for a combination that has no
    implementation."""
    if not isinstance(spec, AttentionSpec):
        return _recurrent_of(build, residual, spec, index)
    if spec.latent is not None:
        return _latent_of(spec, spec.latent)(build, residual, spec, index)
    if spec.shared_key is not None:
        return SharedKeyAttention(build, residual, spec, index)
    if spec.block_indexer is not None:
        if spec.gate not in (None, Gate.WITH_QUERIES) or spec.qk_norm is None:
            raise BadModel("a choice of blocks needs norms of heads, and no gate but with queries")
        chosen = BlockIndexedAttention if spec.gate is None else GatedBlockIndexedAttention
        return chosen(build, residual, spec, index)
    if spec.kv_layer is not None:
        return ReadingAttention(build, residual, spec, index)
    if spec.gate is not None:
        if spec.qk_norm is None or spec.position_scale is not None:
            raise BadModel("a gate of attention needs norms of queries and keys, and no factor")
        return _GATED[spec.gate](build, residual, spec, index)
    scale = spec.position_scale
    scaled = scale is not None and scale.grows(build.positions)
    return _variant(spec, scaled)(build, residual, spec, index)


_GATED: dict[Gate, type[Attention]] = {
    Gate.WITH_QUERIES: QueryGatedAttention,
    Gate.OWN: GatedAttention,
    Gate.PER_HEAD_SOFTPLUS: HeadGatedAttention,
    Gate.PER_HEAD: HeadSigmoidAttention,
}


def _variant(spec: AttentionSpec, scaled: bool) -> type[Attention]:
    """The class of attention with keys and values of its own and no gate."""
    if scaled or spec.clip:
        if spec.qk_norm is not None or (scaled and spec.clip):
            raise BadModel(
                "of norms, bounds, and a factor by position of queries, a layer may have one"
            )
        return PositionScaledAttention if scaled else ClippedAttention
    if spec.value_dim or spec.value_scale != 1:
        if spec.qk_norm is not None:
            raise BadModel("narrow values, or a factor of them, with norms are not supported")
        return NarrowValueAttention
    if spec.value_norm or spec.keys_as_values:
        return ValueNormedAttention
    if spec.qk_norm is None:
        return Attention
    return RotatedNormAttention if spec.qk_norm.after_rope else NormedAttention


def _latent_of(spec: AttentionSpec, latent: LatentSpec) -> type[LatentAttention]:
    """The class of latent attention. Raises BadModel for gates and windows that no family has."""
    indexer = latent.indexer
    if indexer is not None and indexer.pool and spec.gate is None:
        return PooledLatentAttention
    if spec.window:
        if indexer is not None or spec.gate is not Gate.PER_HEAD:
            raise BadModel("latent attention with a window needs a gate per head, and no indexer")
        return WindowLatentAttention
    kinds: dict[tuple[bool, Gate | None], type[LatentAttention]] = {
        (False, None): LatentAttention,
        (False, Gate.PER_HEAD): HeadGatedLatentAttention,
        (True, None): IndexedLatentAttention,
        (True, Gate.OWN): GatedIndexedAttention,
        (True, Gate.PER_HEAD): HeadGatedIndexedAttention,
    }
    kind = indexer is not None, spec.gate
    if kind not in kinds:
        raise BadModel("this gate of latent attention is not supported")
    return kinds[kind]


def _recurrent_of(
    build: Build, residual: ResidualSpec, spec: RecurrentSpec, index: int
) -> Recurrent:
    if isinstance(spec, Mamba2Spec):
        return Mamba2(build, residual, spec, index)
    if isinstance(spec, Mamba1Spec):
        return Mamba1(build, residual, spec, index)
    if isinstance(spec, RgLruSpec):
        return RgLru(build, residual, spec, index)
    if isinstance(spec, LightningSpec):
        return LightningAttention(build, residual, spec, index)
    if isinstance(spec, ShortConvSpec):
        return ShortConv(build, residual, spec, index)
    if isinstance(spec, KimiDeltaSpec):
        return KimiDelta(build, residual, spec, index)
    if isinstance(spec, NgramSpec):
        raise BadModel("n-grams need several residual streams")
    if isinstance(spec, CcaSpec | ConvolutionsSpec):
        raise BadModel("these convolutions are a part of a block of their own")
    return DeltaNet(build, residual, spec, index)


def mlp_of(
    build: Build, residual: ResidualSpec, spec: MlpSpec | MoeSpec | None
) -> GatedMlp | Mlp | MoeMlp | WeighedMoeMlp:
    """Builds the feed-forward layer of a specification. Raises BadModel if there is none, and for
    experts with norms of their own, which only blocks with norms before and behind their layers
    have."""
    if spec is None:
        raise BadModel("a layer without a feed-forward layer needs the plain order of norms")
    if isinstance(spec, MoeSpec):
        if spec.own_norms:
            raise BadModel("experts with norms of their own are not supported in this block")
        if spec.weighed_shared:
            return WeighedMoeMlp(build, residual, spec)
        return (HashMoeMlp if spec.router.tokens else MoeMlp)(build, residual, spec)
    return dense_mlp(build, residual, spec)


class Block(Layer):
    """A decoder layer with a norm before attention and one before the feed-forward layer."""

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        self.kind = spec.layers[index]  # layers of a kind launch the same kernels
        stream, below = spec.residual, build.below(f"blocks.{index}")
        self.attention_norm = norm_of(build, stream.hidden, stream.norm)
        self.attention = attention_of(below.below("attention"), stream, self.kind.attention, index)
        self.mlp_norm = self.mlp = None
        if self.kind.mlp is not None:
            self.mlp_norm = norm_of(build, stream.hidden, stream.norm)
            self.mlp = self.feed_forward(below.below("mlp"), stream)

    def feed_forward(
        self, build: Build, stream: ResidualSpec
    ) -> GatedMlp | Mlp | MoeMlp | OwnNormMoeMlp | WeighedMoeMlp:
        """Builds the feed-forward layer."""
        return mlp_of(build, stream, self.kind.mlp)

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """Returns the stream after this layer, [T, hidden].

        With `rows` [R], returns these rows alone, [R, hidden]; it writes all keys and values.
        """
        residual = self.attention(self.attention_norm, residual, context, rows)
        if self.mlp is None or self.mlp_norm is None:
            return residual
        return self.mlp(self.mlp_norm, residual)


class SandwichBlock(Block):
    """As Block, with an additional norm on the outputs of attention and feed-forward layer, which
    the multiplier follows."""

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        stream = replace(spec.residual, multiplier=1.0)
        super().__init__(replace(spec, residual=stream), build, index)
        self.multiplier = spec.residual.multiplier
        norm = stream.output_norm or stream.norm
        self.attention_output_norm = norm_of(build, stream.hidden, norm)
        self.mlp_output_norm = norm_of(build, stream.hidden, norm)

    def feed_forward(
        self, build: Build, stream: ResidualSpec
    ) -> GatedMlp | Mlp | MoeMlp | OwnNormMoeMlp | WeighedMoeMlp:
        """As `Block`; experts may have norms of their own."""
        spec = self.kind.mlp
        if isinstance(spec, MoeSpec) and spec.own_norms:
            return OwnNormMoeMlp(build, stream, spec)
        return super().feed_forward(build, stream)

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """As `Block`."""
        residual = self.attention(self.attention_norm, residual, context, rows)
        residual = self._normed(self.attention_output_norm, residual)
        assert self.mlp is not None and self.mlp_norm is not None
        return self._normed(self.mlp_output_norm, self.mlp(self.mlp_norm, residual))

    def _normed(self, norm: Norm, residual: Residual) -> Residual:
        """Returns the stream with its newest output summed over the ranks, normalised and
        scaled."""
        x, _ = norm(residual._replace(total=None))
        if self.multiplier != 1:
            x *= self.multiplier
        return residual._replace(x=x, partial=False)


class PostBlock(Layer):
    """A decoder layer that normalises what attention and feed-forward layer add, not what they
    read."""

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        self.kind = spec.layers[index]
        stream, below = spec.residual, build.below(f"blocks.{index}")
        self.group = build.group
        self.attention = attention_of(below.below("attention"), stream, self.kind.attention, index)
        self.attention_output_norm = norm_of(build, stream.hidden, stream.norm)
        self.mlp = mlp_of(below.below("mlp"), stream, self.kind.mlp)
        self.mlp_output_norm = norm_of(build, stream.hidden, stream.norm)

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """As `Block`."""
        x = self.group.summed(residual.x) if residual.partial else residual.x
        total = x if residual.total is None else x + residual.total
        mixed = self._normed(
            self.attention_output_norm, self.attention.product(total, context, rows)
        )
        total = (total if rows is None else total.index_select(0, rows)) + mixed
        return Residual(self._normed(self.mlp_output_norm, self.mlp.product(total)), total, False)

    def _normed(self, norm: Norm, x: Tensor) -> Tensor:
        return norm(Residual(x, None, self.group.size > 1))[0]


class PairBlock(Layer):
    """A decoder layer that is two of the specification: attention and a recurrent layer read the
    same norm, and both are added."""

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        """`index`: of the block; its layers are 2 `index` and the next one, which has the
        feed-forward layer."""
        first, second = self.kind = spec.layers[2 * index : 2 * index + 2]
        self.partial = build.group.size > 1
        stream, below = spec.residual, build.below(f"blocks.{index}")

        def beside(
            name: str, layer: LayerSpec, at: int
        ) -> SelfAttention | SharedKeyAttention | Recurrent:
            scaled = replace(stream, multiplier=stream.multiplier * layer.output_scale)
            return attention_of(below.below(name), scaled, layer.attention, at)

        self.attention_norm = norm_of(build, stream.hidden, stream.norm)  # of both layers' input
        self.recurrent = beside("recurrent", first, 2 * index)
        self.attention = beside("attention", second, 2 * index + 1)
        self.mlp_norm = norm_of(build, stream.hidden, stream.norm)
        self.mlp = mlp_of(below.below("mlp"), stream, second.mlp)

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """As `Block`."""
        x, total = self.attention_norm(residual)
        mixed = self.recurrent.product(x, context, rows)
        mixed = mixed.add_(self.attention.product(x, context, rows))
        if rows is not None:
            total = total.index_select(0, rows)
        return self.mlp(self.mlp_norm, Residual(mixed, total, self.partial))


class ParallelBlock(Layer):
    """A decoder layer with one norm; attention and feed-forward layer both read its output."""

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        self.kind = spec.layers[index]
        stream, below = spec.residual, build.below(f"blocks.{index}")
        self.partial = build.group.size > 1
        self.attention_norm = norm_of(build, stream.hidden, stream.norm)  # of both layers' input
        self.attention = attention_of(below.below("attention"), stream, self.kind.attention, index)
        self.mlp = mlp_of(below.below("mlp"), stream, self.kind.mlp)

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """As `Block`."""
        x, total = self.attention_norm(residual)
        mixed = self.attention.product(x, context, rows)
        if rows is not None:
            x, total = x.index_select(0, rows), total.index_select(0, rows)
        x = self._mlp_input(x, total)
        return Residual(mixed.add_(self.mlp.product(x)), total, self.partial)

    def _mlp_input(self, normed: Tensor, total: Tensor) -> Tensor:
        """What the feed-forward layer reads, of the stream and its norm, all [T, hidden]."""
        return normed


class ParallelNormsBlock(ParallelBlock):
    """As ParallelBlock; the feed-forward layer reads a norm of its own."""

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        super().__init__(spec, build, index)
        self.mlp_norm = norm_of(build, spec.residual.hidden, spec.residual.norm)

    def _mlp_input(self, normed: Tensor, total: Tensor) -> Tensor:
        return self.mlp_norm(Residual(total, None, False))[0]


AnyBlock = Block | PostBlock | ParallelBlock | PairBlock
_BLOCKS: dict[Placement, type[AnyBlock]] = {
    Placement.PRE: Block,
    Placement.SANDWICH: SandwichBlock,
    Placement.POST: PostBlock,
    Placement.PARALLEL: ParallelBlock,
    Placement.PARALLEL_NORMS: ParallelNormsBlock,
    Placement.BESIDE: PairBlock,
}


def block_of(spec: Specification, build: Build, index: int) -> AnyBlock:
    """Builds block `index` of a specification."""
    return _BLOCKS[spec.residual.placement](spec, build, index)

"""One layer of the decoder: attention, then feed-forward, with norms around them."""

from __future__ import annotations

from torch import Tensor

from penstock.attention import StepContext
from penstock.config import MlpSpec, MoeSpec, Placement, ResidualSpec, Specification
from penstock.layers.attention import attention_of
from penstock.layers.base import Build, Layer, Residual
from penstock.layers.experts import MoeMlp
from penstock.layers.mlp import GatedMlp, Mlp
from penstock.layers.norm import Norm, norm_of


def mlp_of(
    build: Build, residual: ResidualSpec, spec: MlpSpec | MoeSpec
) -> GatedMlp | Mlp | MoeMlp:
    """Builds the feed-forward layer of a specification."""
    if isinstance(spec, MoeSpec):
        return MoeMlp(build, residual, spec)
    return (GatedMlp if spec.gated else Mlp)(build, residual, spec)


class Block(Layer):
    """A decoder layer with a norm before attention and one before the feed-forward layer."""

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        self.kind = spec.layers[index]  # layers of a kind launch the same kernels
        stream, below = spec.residual, build.below(f"blocks.{index}")
        self.attention_norm = norm_of(build, stream.hidden, stream.norm)
        self.attention = attention_of(below.below("attention"), stream, self.kind.attention, index)
        self.mlp_norm = norm_of(build, stream.hidden, stream.norm)
        self.mlp = mlp_of(below.below("mlp"), stream, self.kind.mlp)

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """Returns the stream after this layer, [T, hidden].

        With `rows` [R], returns these rows alone, [R, hidden]; it writes all keys and values.
        """
        residual = self.attention(self.attention_norm, residual, context, rows)
        return self.mlp(self.mlp_norm, residual)


class SandwichBlock(Block):
    """As Block, with an additional norm on the outputs of attention and feed-forward layer."""

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        super().__init__(spec, build, index)
        stream = spec.residual
        self.attention_output_norm = norm_of(build, stream.hidden, stream.norm)
        self.mlp_output_norm = norm_of(build, stream.hidden, stream.norm)

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """As `Block`."""
        residual = self.attention(self.attention_norm, residual, context, rows)
        residual = self._normed(self.attention_output_norm, residual)
        return self._normed(self.mlp_output_norm, self.mlp(self.mlp_norm, residual))

    @staticmethod
    def _normed(norm: Norm, residual: Residual) -> Residual:
        """Returns the stream with its newest output summed over the ranks and normalised."""
        return residual._replace(x=norm(residual._replace(total=None))[0], partial=False)


class ParallelBlock(Layer):
    """A decoder layer with one norm; attention and feed-forward layer both read its output."""

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        self.kind = spec.layers[index]
        stream, below = spec.residual, build.below(f"blocks.{index}")
        self.partial = build.group.size > 1
        self.norm = norm_of(build, stream.hidden, stream.norm)
        self.attention = attention_of(below.below("attention"), stream, self.kind.attention, index)
        self.mlp = mlp_of(below.below("mlp"), stream, self.kind.mlp)

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """As `Block`."""
        x, total = self.norm(residual)
        mixed = self.attention.product(x, context, rows)
        if rows is not None:
            x, total = x.index_select(0, rows), total.index_select(0, rows)
        return Residual(mixed.add_(self.mlp.product(x)), total, self.partial)


_BLOCKS: dict[Placement, type[Block] | type[ParallelBlock]] = {
    Placement.PRE: Block,
    Placement.SANDWICH: SandwichBlock,
    Placement.PARALLEL: ParallelBlock,
}


def block_of(spec: Specification, build: Build, index: int) -> Block | ParallelBlock:
    """Builds the block of layer `index` of a specification."""
    return _BLOCKS[spec.residual.placement](spec, build, index)

"""The layer of Zamba and Zamba2."""

from __future__ import annotations

from torch import Tensor

from penstock.config import Mamba1Spec, Mamba2Spec, Specification
from penstock.layers import Build, Layer, Mamba1, Mamba2, Place, Residual, norm_of
from penstock.layers.attention import StepContext


class ZambaBlock(Layer):
    """A layer of Mamba. Its norm may read what a shared transformer yields beside the residual
    stream, to which only the layer's output is added."""

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        self.layer = spec.block_layers[index]
        own, stream = spec.layers[self.layer], spec.residual
        self.group = build.group
        self.attention_norm = norm_of(build, stream.hidden, stream.norm)
        below = build.below(f"blocks.{index}.attention")
        self.attention: Mamba1 | Mamba2
        if isinstance(own.attention, Mamba1Spec):
            self.attention = Mamba1(below, stream, own.attention, self.layer)
        else:
            assert isinstance(own.attention, Mamba2Spec)
            self.attention = Mamba2(below, stream, own.attention, self.layer)
        self.place: Place | None = None  # set by the model
        before = spec.layers[self.layer - 1] if self.layer else own
        self.kind = (own,) if before.place is None else (before, own)

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """As `Block`."""
        if self.place is None:
            return self.attention(self.attention_norm, residual, context, rows)
        x = self.group.summed(residual.x) if residual.partial else residual.x
        total = x if residual.total is None else x + residual.total
        beside = Residual(self.place(total, context), total, self.group.size > 1)
        x, _ = self.attention_norm(beside)
        mixed = self.attention.mix(x, context, rows)
        return self.attention.output(mixed, total if rows is None else total.index_select(0, rows))

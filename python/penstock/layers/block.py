"""One layer of the decoder: attention, then feed-forward."""

from __future__ import annotations

from torch import Tensor

from penstock.attention import StepContext
from penstock.config import Specification
from penstock.layers.attention import Attention
from penstock.layers.base import Build, Layer
from penstock.layers.mlp import GatedMlp
from penstock.layers.norm import RmsNorm
from penstock.layers.residual import Residual


class Block(Layer):
    """A decoder layer with a norm before attention and one before the feed-forward layer."""

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        self.kind = spec.layers[index]  # layers of a kind launch the same kernels
        self.attention_norm = RmsNorm(build, spec.hidden, spec.norm)
        self.attention = Attention(build, spec.hidden, self.kind.attention, index)
        self.mlp_norm = RmsNorm(build, spec.hidden, spec.norm)
        self.mlp = GatedMlp(build, spec.hidden, self.kind.mlp)

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """Returns the stream after this layer, [T, hidden].

        With `rows` [R], returns these rows alone, [R, hidden]; it writes all keys and values.
        """
        residual = self.attention(self.attention_norm, residual, context, rows)
        return self.mlp(self.mlp_norm, residual)

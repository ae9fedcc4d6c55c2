"""A residual stream that is scaled before each output is added to it (ZAYA1, arXiv:2511.17127).

It is float32 or wider, whatever the model's dtype: each layer would round it once more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.layers.base import Build, Layer, Residual
from penstock.weights import Target


def wider(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the stream of a model."""
    return torch.promote_types(dtype, torch.float32)


class SumScale(Layer):
    """(output + bias) * factor + (stream + bias) * factor, with biases and factors of each element.
    Replicated on every rank."""

    def __init__(self, build: Build, hidden: int) -> None:
        wide = wider(build.dtype)
        self.output_factor, self.output_bias, self.stream_factor, self.stream_bias = (
            build.empty(hidden, dtype=wide) for _ in range(4)
        )

    def targets(self) -> dict[str, Target]:
        """Returns the targets of factors and biases."""
        names = "output_factor", "output_bias", "stream_factor", "stream_bias"
        return {name: Target.whole(getattr(self, name)) for name in names}

    def finish(self) -> None:
        """Makes one bias of both, times their factors."""
        self.stream_bias *= self.stream_factor
        self.stream_bias += self.output_bias * self.output_factor

    def __call__(self, output: Tensor, stream: Tensor) -> Tensor:
        """Returns the stream after a layer, as `stream` [T, hidden]; output [T, hidden] of the
        model's dtype is no partial sum."""
        scaled = torch.addcmul(self.stream_bias, stream, self.stream_factor)
        return scaled.addcmul_(output.to(scaled.dtype), self.output_factor)


class ScaledStream(Layer):
    """How the stream begins, as (embedding + bias) * factor of each element, and ends, in the
    model's dtype."""

    def __init__(self, build: Build, hidden: int) -> None:
        self.group, self.dtype = build.group, build.dtype
        wide = wider(build.dtype)
        self.factor, self.bias = (build.empty(hidden, dtype=wide) for _ in range(2))

    def targets(self) -> dict[str, Target]:
        """Returns the targets of factor and bias, replicated on every rank."""
        return {"factor": Target.whole(self.factor), "bias": Target.whole(self.bias)}

    def finish(self) -> None:
        """Multiplies the bias."""
        self.bias *= self.factor

    def begin(self, residual: Residual) -> Residual:
        """The embedding [T, hidden] -> the stream [T, hidden], wider."""
        x = self.group.summed(residual.x) if residual.partial else residual.x
        x = torch.addcmul(self.bias, x.to(self.bias.dtype), self.factor)
        return Residual(x, None, partial=False)

    def end(self, residual: Residual) -> Residual:
        """The stream [T, hidden], in the model's dtype."""
        return residual._replace(x=residual.x.to(self.dtype))

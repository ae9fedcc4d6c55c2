"""The gated short convolution of LFM2 (arXiv:2511.23404); ranks share its channels."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_kernels import causal_conv
from penstock_kernels.recurrence import Runs
from torch import Tensor

from penstock.cache import StateCache
from penstock.config import ResidualSpec, ShortConvSpec
from penstock.layers.attention import StepContext
from penstock.layers.base import Build
from penstock.layers.linear import ColumnLinear, RowLinear
from penstock.layers.recurrent import Convolution, Recurrent


class ShortConv(Recurrent):
    """Layer `index`: a token's B, C and x; the convolution of B x; times C; output projection."""

    def __init__(
        self, build: Build, residual: ResidualSpec, spec: ShortConvSpec, index: int
    ) -> None:
        self.index = index
        channels = build.group.share(spec.channels, "hidden_size")
        parts = dict.fromkeys(("b", "c", "x"), spec.channels)
        self.inputs = ColumnLinear(build.below("inputs"), parts, residual, spec.bias)
        self.convolution = Convolution(build, {"x": channels}, spec.width, spec.bias)
        self.output = RowLinear(build.below("output"), residual, spec.channels, spec.bias)

    def mix(self, x: Tensor, context: StepContext, rows: Tensor | None) -> Tensor:
        """x [T, hidden] -> the input of `output` [T, channels], or [R, channels] of `rows`."""
        before, after, x = self.inputs.product(x).chunk(3, 1)
        out = before.new_empty(before.shape)
        self.run([before * x, out], context)
        if rows is not None:
            out, after = out.index_select(0, rows), after.index_select(0, rows)
        return out.mul_(after)

    def recur(self, tokens: Sequence[Tensor], cache: StateCache, runs: Runs) -> None:
        """Runs the convolution; see `run`."""
        x, out = tokens
        assert cache.inputs is not None
        weight, bias = self.convolution.weight[:, 0], self.convolution.bias
        causal_conv(x, weight, cache.inputs, runs, out, bias=bias, silu=False)

"""A short convolution that is added to what it reads; ranks may have parts of a sum (Inkling)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from penstock_kernels import causal_conv
from penstock_kernels.recurrence import Runs
from torch import Tensor

from penstock.cache import StateCache
from penstock.layers.attention import StepContext
from penstock.layers.base import Build
from penstock.layers.linear import column_targets
from penstock.layers.recurrent import StateRuns
from penstock.parallel import Share
from penstock.quant import WeightTensor
from penstock.weights import Target


class AddedConvolution(StateRuns):
    """x + convolution of x, for some channels of the states of layer `index`.

    It is linear, so that of a partial sum is a partial sum, and each rank keeps its own inputs.
    """

    factor = 1.0
    """Of the sum; set it before `finish`."""

    def __init__(self, build: Build, index: int, first: int, channels: int, width: int) -> None:
        """`first`: of the `channels` in the states."""
        self.index, self.first, self.channels = index, first, channels
        # In 16 bits, 1 + w would lose most of a small w.
        wide = torch.promote_types(build.dtype, torch.float32)
        self.weight = build.empty(channels, 1, width, dtype=wide)

    def targets(self) -> dict[str, Target]:
        """Returns the target of all channels, the same on every rank."""
        return {"weight": Target.whole(self.weight)}

    def finish(self) -> None:
        """Adds what the convolution reads: the newest input's weight becomes 1 + w."""
        self.weight[:, :, -1] += 1
        self.weight *= self.factor

    def __call__(self, x: Tensor, context: StepContext) -> Tensor:
        """x [T, channels], rows may be strided -> [T, channels]. Replaces inputs in the states."""
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        self.run([x, out], context, self._convolve)
        return out

    def _convolve(self, tokens: Sequence[Tensor], cache: StateCache, runs: Runs) -> None:
        x, out = tokens
        assert cache.inputs is not None
        states = cache.inputs.narrow(3, self.first, self.channels)
        causal_conv(x, self.weight[:, 0], states, runs, out, silu=False)


class ScaledConvolution(AddedConvolution):
    """As AddedConvolution, times a learned number."""

    def __init__(self, build: Build, index: int, first: int, channels: int, width: int) -> None:
        super().__init__(build, index, first, channels, width)
        self.scale = build.empty(1, dtype=self.weight.dtype)

    def targets(self) -> dict[str, Target]:
        """Also returns the target of the number."""
        return {**super().targets(), "scale": Target.whole(self.scale)}

    def finish(self) -> None:
        """Also multiplies the weights by the number."""
        super().finish()
        self.weight *= self.scale


class KvConvolution(AddedConvolution):
    """As AddedConvolution, of this rank's keys and values: the first channels of the states."""

    def __init__(self, build: Build, index: int, channels: int, width: int, share: Share) -> None:
        """`channels`: of keys, and as many of values, on this rank."""
        super().__init__(build, index, 0, 2 * channels, width)
        self.parts: Mapping[str, int] = {"k": channels, "v": channels}
        self.group, self.share = build.group, share

    def targets(self) -> dict[str, Target]:
        """Returns the targets of the channels of keys, and of values."""
        stored = {"weight": WeightTensor(self.weight, 0, None)}
        return column_targets(
            self.parts, stored, None, self.group, dict.fromkeys(self.parts, self.share)
        )

"""A short convolution of keys and values whose weights depend on the token (Inkling 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from penstock_kernels import causal_conv, linear
from penstock_kernels.recurrence import Runs
from torch import Tensor

from penstock.cache import StateCache
from penstock.layers.attention import StepContext
from penstock.layers.base import Build, Layer
from penstock.layers.recurrent import StateRuns
from penstock.parallel import Share
from penstock.weights import Target


class TapSizes(NamedTuple):
    """What a convolution of keys, or of values, reads."""

    heads: int
    """On this rank."""
    head_dim: int
    hidden: int
    """Elements of a token, from which weights follow."""
    width: int
    """Tokens that it reads."""


class TokenTaps(Layer):
    """The weights of a convolution: one for each channel, to which a projection of the token adds
    one for each head. They are floats in any weight format."""

    def __init__(self, build: Build, sizes: TapSizes, share: Share) -> None:
        """`share`: the heads of this rank."""
        self.sizes, self.share = sizes, share
        self.wide = torch.promote_types(build.dtype, torch.float32)
        channels = sizes.heads * sizes.head_dim
        self.static = build.empty(sizes.width, channels, dtype=self.wide)
        self.projection = build.empty(sizes.heads * sizes.width, sizes.hidden)

    def targets(self) -> dict[str, Target]:
        """Returns the targets of this rank's heads."""
        part = self.share.index, self.share.count
        return {
            "static": Target.share(self.static, 1, *part),
            "projection": Target.share(self.projection, 0, *part),
        }

    def of_channels(self) -> Tensor:
        """[channels, width], that of the oldest input first; stored is the newest one first."""
        return self.static.flip(0).t()

    def of_tokens(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, heads, width], as `of_channels`."""
        taps: Tensor = linear(x, self.projection, None)
        return taps.view(len(x), self.sizes.heads, -1).flip(2).to(self.wide)


class TokenConvolution(StateRuns):
    """As `KvConvolution`, with weights that depend on the token, and divided by the root of the
    number of summands: both kinds of weights, and what it reads."""

    def __init__(self, build: Build, index: int, sizes: TapSizes, share: Share) -> None:
        self.index = index
        self.k, self.v = (TokenTaps(build, sizes, share) for _ in range(2))
        self.factor = (2 * sizes.width + 1) ** -0.5
        channels = 2 * sizes.heads * sizes.head_dim
        self.weight = build.empty(channels, sizes.width, dtype=self.k.wide)

    def finish(self) -> None:
        """Joins the weights of keys and values, and adds what the convolution reads."""
        torch.cat((self.k.of_channels(), self.v.of_channels()), out=self.weight)
        self.weight[:, -1] += 1
        self.weight *= self.factor

    def __call__(
        self, kv: Tensor, of_keys: Tensor, of_values: Tensor, context: StepContext
    ) -> Tensor:
        """kv [T, channels], and what weights of keys and of values follow from, [T, hidden] each
        -> [T, channels]. Replaces inputs in the states."""
        taps = torch.cat((self.k.of_tokens(of_keys), self.v.of_tokens(of_values)), 1)
        out = torch.empty(kv.shape, dtype=kv.dtype, device=kv.device)
        self.run([kv, out, taps * self.factor], context, self._convolve)
        return out

    def _convolve(self, tokens: Sequence[Tensor], cache: StateCache, runs: Runs) -> None:
        x, out, taps = tokens
        assert cache.inputs is not None
        states = cache.inputs.narrow(3, 0, len(self.weight))
        causal_conv(x, self.weight, states, runs, out, silu=False, taps=taps)

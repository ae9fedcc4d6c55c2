"""The two convolutions of compressed convolutional attention, and values of the token before."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from penstock_kernels import causal_conv
from penstock_kernels.recurrence import Runs
from torch import Tensor

from penstock.cache import StateCache
from penstock.config import CcaSpec
from penstock.layers.attention import StepContext
from penstock.layers.base import Build
from penstock.layers.linear import column_targets
from penstock.layers.recurrent import StateRuns
from penstock.parallel import Share
from penstock.quant import WeightTensor
from penstock.weights import Target


class CcaConvolutions(StateRuns):
    """Convolves queries and keys of this rank: each channel by itself, then all channels of a head.

    One launch convolves all channels, and lets values pass: those of the token itself, or of the
    one before. The second convolution is a product of matrices, of a token's channels and those of
    the tokens before it, which further launches fetch. Layer `index` has the states.
    """

    def __init__(self, build: Build, spec: CcaSpec, index: int, share: Share) -> None:
        """`share`: of the KV heads."""
        self.index, self.group, self.share = index, build.group, share
        self.head_dim, self.width, self.head_width = spec.head_dim, spec.width, spec.head_width
        self.channels, values = spec.channels(build.group.size)
        keys = values  # as many channels
        self.parts = {"q": self.channels - keys, "k": keys}
        self.taps = build.empty(self.channels + values, spec.kept_width).zero_()
        self.bias = build.empty(self.channels)
        self.head_taps = build.empty(self.channels, spec.head_dim, spec.head_width)
        self.head_bias = build.empty(self.channels)
        self.value_bias: Tensor | None = None
        # Values of all ranks: the second half is of the token before.
        here = share.count * values // 2 - share.index * values
        self.delayed = slice(self.channels + min(max(here, 0), values), self.channels + values)
        self.taps[self.channels : self.delayed.start, -1] = 1
        self.taps[self.delayed, -2] = 1
        back = spec.head_width - 1
        self.fetches = build.empty(back, self.channels, spec.kept_width).zero_()
        for fetch in range(back):  # the token furthest back is the first
            self.fetches[fetch, :, fetch - back - 1] = 1
        self.matrices: Tensor | None = None
        """[heads, head_width * head_dim, head_dim]."""

    def targets(self) -> dict[str, Target]:
        """Returns the targets of both convolutions, of this rank's queries and keys."""
        shares = dict.fromkeys(self.parts, self.share)
        found: dict[str, Target] = {}
        own = self.taps[: self.channels, None, -self.width :]
        both = {"channels": (own, self.bias), "heads": (self.head_taps, self.head_bias)}
        for name, (taps, bias) in both.items():
            stored = {"weight": WeightTensor(taps, 0, None)}
            targets = column_targets(self.parts, stored, bias, self.group, shares)
            found |= {f"{name}.{part}": target for part, target in targets.items()}
        return found

    def reorder(self, within: Tensor) -> None:
        """Permutes the dimensions of each head."""
        for tensor in (self.taps[: self.channels], self.bias, self.head_taps, self.head_bias):
            heads = tensor.unflatten(0, (-1, self.head_dim))
            heads.copy_(heads[:, within])
        self.head_taps.copy_(self.head_taps[:, within])

    def take_bias(self, bias: Tensor) -> None:
        """Moves the bias of delayed values out of that of all projections, behind the delay."""
        self.value_bias = torch.zeros_like(bias)
        self.value_bias[self.delayed] = bias[self.delayed]
        bias[self.delayed] = 0

    def finish(self) -> None:
        """Makes matrices of the second convolution. Its bias contains what it makes of the first
        one's, which inputs before the sequence have too."""
        taps = self.head_taps.unflatten(0, (-1, self.head_dim))  # [heads, outputs, inputs, width]
        wide = torch.promote_types(taps.dtype, torch.float32)
        bias = self.bias.to(wide).view(-1, self.head_dim)
        passed = torch.einsum("hoi,hi->ho", taps.sum(-1, dtype=wide), bias)
        self.head_bias.copy_(self.head_bias.to(wide) + passed.flatten())
        self.matrices = taps.permute(0, 3, 2, 1).flatten(1, 2).contiguous()

    def __call__(self, qkv: Tensor, context: StepContext) -> tuple[Tensor, Tensor]:
        """qkv [T, ...] -> convolved queries and keys [T, heads, head_dim], side by side, and
        values [T, KV heads, head_dim]. Replaces what the states keep."""
        assert self.matrices is not None
        tokens = len(qkv)
        first = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
        before = [qkv.new_empty(tokens, self.channels) for _ in self.fetches]
        self.run([qkv, first, *before], context, self._convolve)
        own, values = first.tensor_split([self.channels], 1)
        seen = torch.cat([x.view(tokens, -1, self.head_dim) for x in (*before, own)], 2)
        bias = self.head_bias.view(-1, 1, self.head_dim)
        out = torch.baddbmm(bias, seen.transpose(0, 1), self.matrices).transpose(0, 1)
        return out, values.view(tokens, -1, self.head_dim)

    def _convolve(self, tokens: Sequence[Tensor], cache: StateCache, runs: Runs) -> None:
        qkv, first, *before = tokens
        assert cache.inputs is not None
        states, *others = cache.inputs.tensor_split(self._places(), 3)
        causal_conv(qkv, self.taps, states, runs, first, self.value_bias, silu=False)
        for fetch, kept, out in zip(self.fetches, others, before, strict=True):
            causal_conv(first[:, : self.channels], fetch, kept, runs, out, silu=False)

    def _places(self) -> list[int]:
        """Where, among the channels of a state, those of each fetch begin."""
        return [len(self.taps) + i * self.channels for i in range(len(self.fetches))]

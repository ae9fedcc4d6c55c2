"""How ranks share the heads of Mamba-1 (Zamba, arXiv:2405.16712), or its channels without heads."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.config import Mamba1Spec
from penstock.layers.base import Build
from penstock.weights import Target


class OwnHeads:
    """This rank's channels: of whole heads, or with more ranks than heads, a part of one.

    Without heads, all channels are one head.
    """

    def __init__(self, build: Build, spec: Mamba1Spec) -> None:
        self.group = build.group
        self.named = spec.heads is not None
        self.total = spec.heads or 1
        self.channels = self.group.share(spec.channels, spec.shared[0])
        share = self.group.kv_share(self.total, "n_mamba_heads")
        self.whole = share == self.group.own
        self.count = self.total // share.count
        self.size = self.channels // self.count
        """This rank's channels of each head."""
        self.of_head = spec.channels // self.total
        self.first, self.start = divmod(self.group.rank * self.channels, self.of_head)

    def target(self, data: Tensor, dim: int) -> Target:
        """Returns the target of this rank's heads, [heads, ...], with its channels along `dim`. A
        model without heads stores such a tensor without their dimension."""
        shape, region = list(data.shape), [slice(0, n) for n in data.shape]
        shape[0], region[0] = self.total, slice(self.first, self.first + self.count)
        shape[dim], region[dim] = self.of_head, slice(self.start, self.start + self.size)
        if self.named:
            return Target(data, tuple(shape), tuple(region))
        return Target(data[0], tuple(shape[1:]), tuple(region[1:]))

    def summed(self, x: Tensor) -> Tensor:
        """x [T, this rank's heads, n], sums over this rank's channels -> those over all channels of
        each head. May overwrite x."""
        if self.whole:
            return x
        if self.total == 1:
            return self.group.summed(x)
        every = x.new_zeros(len(x), self.total, x.shape[2])
        every[:, self.first] = x[:, 0]
        return self.group.summed(every)[:, self.first, None]


def beside(parts: list[Tensor]) -> Tensor:
    """Tensors [T, n] of each head -> [T, heads, n]."""
    return parts[0][:, None] if len(parts) == 1 else torch.stack(parts, 1)

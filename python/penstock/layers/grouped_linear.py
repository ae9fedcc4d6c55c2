"""A matrix for each group of heads (DeepSeek-V4's output projection)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from penstock.config import ResidualSpec, SharedKeySpec
from penstock.layers.base import Build
from penstock.layers.linear import ColumnLinear


class GroupedLinear(ColumnLinear):
    """Multiplies each group of inputs by a matrix of its own; ranks share the groups.

    The matrices are kept as floats, whatever the checkpoint's format is.
    """

    def __init__(
        self, build: Build, residual: ResidualSpec, inputs: int, spec: SharedKeySpec
    ) -> None:
        build.group.share(spec.groups, "o_groups")
        self.rank, self.dtype = spec.group_rank, build.dtype
        stream = replace(residual, hidden=inputs // spec.groups)
        super().__init__(build, {"all": spec.groups * spec.group_rank}, stream, False)
        self.matrices: Tensor | None = None
        """[groups, inputs of a group, outputs of a group]."""

    def finish(self) -> None:
        """Splits the matrix by groups."""
        super().finish()
        matrix = self.method.dequantize(self.weights).to(self.dtype)
        self.weights: Mapping[str, Tensor] = {"matrix": matrix}
        self.matrices = matrix.view(-1, self.rank, matrix.shape[1]).mT

    def product(self, x: Tensor, open_gate: bool = False) -> Tensor:
        """x [T, groups * inputs] -> [T, groups * outputs]."""
        assert self.matrices is not None
        groups, inputs, outputs = self.matrices.shape
        out = x.new_empty((len(x), groups, outputs))
        by_group = x.view(len(x), groups, inputs).transpose(0, 1)
        torch.bmm(by_group, self.matrices, out=out.transpose(0, 1))
        return out.flatten(1)

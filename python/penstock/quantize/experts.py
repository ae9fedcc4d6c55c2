"""The experts of a decoder layer on the calibration texts: each has inputs of its own."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from penstock_kernels import act_mul
from penstock_kernels.expert_mlp import Activation
from penstock_kernels.route_experts import Routed
from torch import Tensor

from penstock.layers import ExpertMlps
from penstock.quantize.statistics import Inputs

FEW_TOKENS = 256
"""An expert that fewer tokens chose is calibrated with the inputs of all: GPTQ takes inputs that
were never seen for inputs that are always 0."""


class WatchedExperts:
    """Takes the place of a layer's experts, and keeps their inputs."""

    def __init__(self, experts: ExpertMlps) -> None:
        self.experts = experts
        self._hidden: list[Tensor] = []
        self._chosen: list[Tensor] = []

    def __call__(self, x: Tensor, routed: Routed) -> Tensor:
        """What the experts return."""
        self._hidden.append(x.cpu())
        self._chosen.append(routed.ids.cpu())
        return self.experts(x, routed)

    def inputs(self, path: str) -> Inputs:
        """The inputs of one matrix: "3.gate_up" or "3.down" of the third expert."""
        number, _, matrix = path.partition(".")
        expert = int(number)
        found: Inputs | None = None
        for hidden in self._rows(expert):
            rows = hidden if matrix == "gate_up" else self._inner(expert, hidden)
            found = found or Inputs(rows.shape[1], rows.device)
            found.add(rows)
        assert found is not None
        return found

    def _rows(self, expert: int) -> Iterator[Tensor]:
        """Yields the rows [T, hidden] of each batch that the expert gets."""
        chosen = [(ids == expert).any(1) for ids in self._chosen]
        if sum(int(rows.sum()) for rows in chosen) < FEW_TOKENS:
            chosen = [torch.ones_like(rows) for rows in chosen]
        for hidden, rows in zip(self._hidden, chosen, strict=True):
            yield hidden[rows].to(self.experts.device)

    def _inner(self, expert: int, rows: Tensor) -> Tensor:
        """What `down` multiplies, [T, inner size]."""
        experts = self.experts.experts
        assert experts is not None
        assert isinstance(experts.gate_up, Tensor)
        bias = None if experts.gate_up_bias is None else experts.gate_up_bias[expert]
        both = F.linear(rows, experts.gate_up[expert], bias)
        name = "silu" if experts.activation is Activation.CAPPED_SILU else experts.activation.value
        return act_mul(both, name, experts.activation.limit)

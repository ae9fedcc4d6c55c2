"""transformers' plans of tensor parallelism: what ranks do with each module of a model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from penstock.layers import Cut

# Components of paths whose matrices choose experts: small, and sensitive to rounding.
ROUTERS = {"gate", "router", "shared_expert_gate"}


@dataclass(frozen=True)
class LinearShare:
    """What a rank has of a linear layer."""

    cut: Cut
    whole: bool = False
    """Whether the module around it has whole rows on every rank: outputs are gathered, or a rank
    takes its part of the inputs."""
    optional: bool = False
    """Whether every rank has all of it where it does not divide."""


UNNAMED = LinearShare(Cut.OUTPUTS, whole=True, optional=True)
LINEAR = {
    "colwise": LinearShare(Cut.OUTPUTS),
    "rowwise": LinearShare(Cut.INPUTS),
    **dict.fromkeys(("colwise_gather_output", "colwise_rep"), LinearShare(Cut.OUTPUTS, whole=True)),
    **dict.fromkeys(("rowwise_split_input", "rowwise_rep"), LinearShare(Cut.INPUTS, whole=True)),
}
# Tensors of a module of experts. Their styles tell the inner dimension of `down_proj`: they are
# [experts, 2 * inner, hidden] and [experts, hidden, inner], or both transposed.
TENSORS = ("gate_up_proj", "down_proj")
EXPERTS = {("packed_colwise", "rowwise"): 2, ("packed_rowwise", "colwise"): 1}
SUMMED = "moe_tp_experts"  # of the module itself
# `mla_kv_a_proj` differs in its gradient alone.
WHOLE = {"replicate", "replicated_with_grad_allreduce", "mla_kv_a_proj"}
KNOWN = {*LINEAR, *(style for styles in EXPERTS for style in styles), SUMMED, *WHOLE}
# The library sums or gathers what ranks find in their parts: that is what a whole table has.
EMBEDDING = {"embedding_rowwise", "embedding_colwise"}


class Plan:
    """The plan of one model, without its embeddings: they are whole on each rank."""

    def __init__(self, model: Any, config: Any) -> None:
        styles: dict[str, str] = getattr(config, "base_model_tp_plan", None) or {}
        self.styles = {path: style for path, style in styles.items() if style not in EMBEDDING}
        self.model = model

    def unknown(self) -> str:
        """Why the plan cannot be followed; "" if it can."""
        for pattern, style in self.styles.items():
            if style not in KNOWN:
                return f"transformers' plan gives {pattern} the style {style!r}, which is unknown"
        return ""

    def linears(self) -> dict[str, LinearShare]:
        """Returns what ranks have of each linear layer that the plan names, by its path."""
        found = self._linears()
        return {path: LINEAR[style] for path, style in found if style in LINEAR}

    def unnamed(self) -> dict[str, LinearShare]:
        """Returns what ranks have of each linear layer that the plan does not name. To gather
        outputs is right anywhere, so nothing between the layers needs to be known."""
        return {
            path: UNNAMED
            for path, style in self._linears()
            if not style and ROUTERS.isdisjoint(path.split("."))
        }

    def experts(self) -> dict[str, int]:
        """Returns the inner dimension of `down_proj` by the path of each module of experts; 0 if
        the plan leaves some of its tensors out."""
        return {
            path: self._inner_dim(path, module)
            for path, module in self.model.named_modules()
            if self._style(path) == SUMMED
        }

    def _inner_dim(self, path: str, module: nn.Module) -> int:
        if {name for name, _ in module.named_parameters(recurse=False)} != set(TENSORS):
            return 0
        gate_up, down = (self._style(f"{path}.{name}") for name in TENSORS)
        return EXPERTS.get((gate_up, down), 0)

    def _linears(self) -> Iterator[tuple[str, str]]:
        """Yields the path and the style of each linear layer but the head."""
        head = self.model.get_output_embeddings()
        for path, module in self.model.named_modules():
            if isinstance(module, nn.Linear) and module is not head:
                yield path, self._style(path)

    def _style(self, path: str) -> str:
        inner = path.removeprefix(f"{self.model.base_model_prefix}.")
        return self.styles.get(re.sub(r"\.\d+(?=\.|$)", ".*", inner), "")

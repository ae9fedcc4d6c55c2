"""How ranks share a transformers module: by the library's own plan of tensor parallelism.

Ranks cut linear layers along their outputs or inputs, and every expert along its inner size. All
else is whole on each rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from penstock.layers import Cut
from penstock.parallel import Group

LINEAR = {"colwise": Cut.OUTPUTS, "rowwise": Cut.INPUTS}
# Tensors [experts, 2 * inner, hidden] and [experts, hidden, inner] of a module of experts.
EXPERTS = {"gate_up_proj": "packed_colwise", "down_proj": "rowwise"}
SUMMED = "moe_tp_experts"  # of the module itself
WHOLE = {"replicate", "replicated_with_grad_allreduce"}
KNOWN = {*LINEAR, *EXPERTS.values(), SUMMED, *WHOLE}


@dataclass(frozen=True)
class Sharing:
    """What ranks share of a model, or why they cannot."""

    cuts: dict[str, Cut]
    """By a linear layer's path."""
    experts: tuple[str, ...]
    """Paths of modules of experts."""
    sizes: tuple[tuple[str, int], ...]
    """Sides that the ranks must be able to share equally, and their names."""
    refusal: str
    """Why ranks cannot share the model; "" if they can."""


def sharing(model: Any, config: Any, attentions: Iterable[str]) -> Sharing:
    """Reads the library's plan for a model, whose weights may be on the meta device. `attentions`
    are the paths of its attention modules."""
    plan = dict(getattr(config, "base_model_tp_plan", None) or {})
    refusal = _unknown(plan)
    cuts: dict[str, Cut] = {}
    experts: list[str] = []
    sizes: dict[int, str] = {}
    for path, module in model.named_modules():
        pattern = re.sub(r"\.\d+(?=\.|$)", ".*", path.removeprefix(f"{model.base_model_prefix}."))
        style = plan.get(pattern)
        if style == SUMMED:
            tensors = dict(module.named_parameters(recurse=False))
            if {name: plan.get(f"{pattern}.{name}") for name in tensors} != EXPERTS:
                refusal = f"its experts at {path} have tensors that the plan does not cut"
                continue
            experts.append(path)
            sizes.setdefault(tensors["down_proj"].shape[-1], f"the inner size of {path}")
        elif isinstance(module, nn.Linear) and style in LINEAR:
            cut = cuts[path] = LINEAR[style]
            size = module.out_features if cut is Cut.OUTPUTS else module.in_features
            sizes.setdefault(size, f"the {cut.value} of {path}")
    whole = [path for path in attentions if not any(cut.startswith(f"{path}.") for cut in cuts)]
    if whole and not refusal:
        refusal = f"transformers' plan does not share {whole[0]}"
    named = tuple((name, size) for size, name in sizes.items())
    return Sharing(cuts, tuple(experts), named, refusal)


def _unknown(plan: dict[str, str]) -> str:
    """Why a plan cannot be followed; "" if it can."""
    for pattern, style in plan.items():
        if style not in KNOWN:
            return f"transformers' plan gives {pattern} the style {style!r}, which is unknown"
    return "" if plan else "transformers has no plan for it"


def share_experts(model: nn.Module, paths: Iterable[str], group: Group) -> None:
    """Leaves this rank its part of each expert, and sums the results over the ranks."""

    def summed(_module: nn.Module, _given: Any, out: Tensor) -> Tensor:
        return group.summed(out)

    for path in paths:
        experts: Any = model.get_submodule(path)
        gate_up, down = experts.gate_up_proj.data, experts.down_proj.data
        inner = down.shape[-1] // group.size
        first = group.rank * inner
        sides = gate_up.unflatten(1, (2, -1)).narrow(2, first, inner)
        for name, part in (
            ("gate_up_proj", sides.flatten(1, 2)),
            ("down_proj", down.narrow(-1, first, inner)),
        ):
            setattr(experts, name, nn.Parameter(part.clone().contiguous(), requires_grad=False))
        experts.register_forward_hook(summed)

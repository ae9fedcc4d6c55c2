"""How ranks share a transformers module: by the library's own plan, along whole linear layers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torch import nn

from penstock.layers import Cut

STYLES = {"colwise": Cut.OUTPUTS, "rowwise": Cut.INPUTS}
REPLICATED = {"replicate", "replicated_with_grad_allreduce"}


@dataclass(frozen=True)
class Sharing:
    """What ranks share of a model, or why they cannot."""

    cuts: dict[str, Cut]
    """By a linear layer's path."""
    sizes: tuple[tuple[str, int], ...]
    """Sides that the ranks must be able to share equally, and their names."""
    refusal: str
    """Why ranks cannot share the model; "" if they can."""


def sharing(model: Any, config: Any) -> Sharing:
    """Reads the library's plan for a model, whose weights may be on the meta device."""
    plan = dict(getattr(config, "base_model_tp_plan", None) or {})
    if not plan:
        return Sharing({}, (), "transformers has no plan for it")
    for pattern, style in plan.items():
        if style not in STYLES and style not in REPLICATED:
            refusal = f"transformers' plan gives {pattern} the style {style!r}, which is unknown"
            return Sharing({}, (), refusal)
    cuts: dict[str, Cut] = {}
    sizes: dict[int, str] = {}
    for path, module in model.named_modules():
        inside = path.removeprefix(f"{model.base_model_prefix}.")
        cut = STYLES.get(plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", inside), ""))
        if cut is not None and isinstance(module, nn.Linear):
            cuts[path] = cut
            size = module.out_features if cut is Cut.OUTPUTS else module.in_features
            sizes.setdefault(size, f"the {cut.value} of {path}")
    return Sharing(cuts, tuple((name, size) for size, name in sizes.items()), "")

"""How ranks share a transformers module: by the library's own plan of tensor parallelism.

Ranks cut linear layers along their outputs or inputs, and every expert along its inner size. All
else is whole on each rank. A plan may leave attention out, or not exist: then the linear layers
that it does not name are cut along their outputs, which each rank gathers. Where a module makes
queries, keys and values of all heads, `Heads` takes a rank's part of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from penstock.layers import Cut
from penstock.models.fallback.plan import LinearShare, Plan
from penstock.parallel import Group

LEAST = 0.5  # of the weights: of those that ranks do not share, each has a copy


@dataclass(frozen=True)
class Sharing:
    """What ranks share of a model, or why they cannot."""

    linears: dict[str, LinearShare]
    """By a linear layer's path."""
    experts: dict[str, int]
    """The inner dimension of `down_proj`, by the path of a module of experts."""
    whole: frozenset[str]
    """Paths of attention modules that make queries, keys and values of all heads on every rank."""
    sizes: tuple[tuple[str, int], ...]
    """Sides that the ranks must be able to share equally, and their names."""
    refusal: str
    """Why ranks cannot share the model; "" if they can."""


def sharing(model: Any, config: Any, attentions: Sequence[str]) -> Sharing:
    """Reads the library's plan for a model, whose weights may be on the meta device. `attentions`
    are the paths of its attention modules."""
    plan = Plan(model, config)
    linears, experts = plan.linears(), plan.experts()
    if not any(_inside(path, attentions) for path in linears):
        linears |= plan.unnamed()
    divided = [path for path, share in linears.items() if not share.whole]
    whole = frozenset(each for each in attentions if not any(_inside(p, [each]) for p in divided))
    refusal = plan.unknown() or _refusal(model, plan, linears, experts)
    return Sharing(linears, experts, whole, tuple(_sizes(model, linears, experts)), refusal)


def _inside(path: str, modules: Iterable[str]) -> bool:
    return path.startswith(tuple(f"{module}." for module in modules))


def _refusal(model: Any, plan: Plan, linears: Iterable[str], experts: Mapping[str, int]) -> str:
    """Why ranks cannot share what the plan names; "" if they can."""
    for path, dim in experts.items():
        if not dim:
            return f"its experts at {path} have tensors that the plan does not cut"
    part = _shared_part(model, (*linears, *experts))
    if part >= LEAST:
        return ""
    without = "" if plan.styles else "transformers has no plan for its layers, and "
    return f"{without}ranks would share only {part:.0%} of its weights"


def _shared_part(model: Any, paths: Iterable[str]) -> float:
    """The part of a model's weights that is in these modules. Embeddings and head do not count."""
    head = model.get_output_embeddings()
    ends = (m for m in model.modules() if m is head or isinstance(m, nn.Embedding))
    apart = {weights for module in ends for weights in module.parameters(recurse=False)}
    total: int = sum(weights.numel() for weights in model.parameters() if weights not in apart)
    modules = (model.get_submodule(path) for path in paths)
    shared: int = sum(weights.numel() for module in modules for weights in module.parameters())
    return shared / max(total, 1)


def _sizes(
    model: Any, linears: Mapping[str, LinearShare], experts: Mapping[str, int]
) -> Iterator[tuple[str, int]]:
    """Yields each size that must divide, once, with the name of its first place."""
    sizes: dict[int, str] = {}
    for path, share in linears.items():
        if not share.optional:
            module = model.get_submodule(path)
            size = module.out_features if share.cut is Cut.OUTPUTS else module.in_features
            sizes.setdefault(size, f"the {share.cut.value} of {path}")
    for path, dim in experts.items():
        size = model.get_submodule(path).down_proj.shape[dim]
        sizes.setdefault(size, f"the inner size of {path}")
    yield from ((name, size) for size, name in sizes.items())


def share_experts(model: nn.Module, dims: Mapping[str, int], group: Group) -> None:
    """Leaves this rank its part of each expert, and sums the results over the ranks. `dims`: see
    `Sharing.experts`."""

    def summed(_module: nn.Module, _given: Any, out: Tensor) -> Tensor:
        return group.summed(out)

    for path, dim in dims.items():
        experts: Any = model.get_submodule(path)
        gate_up, down = experts.gate_up_proj.data, experts.down_proj.data
        inner = down.shape[dim] // group.size
        first = group.rank * inner
        across = 3 - dim  # of gate and up, side by side
        sides = gate_up.unflatten(across, (2, -1)).narrow(across + 1, first, inner)
        for name, part in (
            ("gate_up_proj", sides.flatten(across, across + 1)),
            ("down_proj", down.narrow(dim, first, inner)),
        ):
            setattr(experts, name, nn.Parameter(part.clone().contiguous(), requires_grad=False))
        experts.register_forward_hook(summed)

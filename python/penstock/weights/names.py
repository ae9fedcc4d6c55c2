"""Maps names of checkpoint modules to paths of layers, and back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from penstock.faults import BadModel
from penstock.weights.form import Form
from penstock.weights.target import Target, joined

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


class Names:
    """Maps layers to the checkpoint modules of their weights.

    `modules` maps a checkpoint's module to a layer's path, with {} for a layer's number:
    "model.layers.{}.mlp.up_proj" -> "blocks.{}.mlp.gate_up.up". A fused module,
    such as gate and up in one matrix, maps to the fused layer: "blocks.{}.mlp.gate_up". A tensor
    that is not in the module of its layer maps to its own path:
    "model.layers.{}.mlp.bias" -> "blocks.{}.mlp.router.bias".

    A family whose layers are numbered otherwise lists each of them, with its number.

    `forms` say how the checkpoint stores weight and bias of a module, if not as the layer has them.
    """

    def __init__(self, modules: Mapping[str, str], forms: Mapping[str, Form] | None = None) -> None:
        self._modules = {path: module for module, path in modules.items()}
        self.forms = {module: form for module, form in (forms or {}).items() if module in modules}

    def module(self, path: str) -> str | None:
        """Returns the checkpoint's module of the layer at `path`; None if there is none."""
        module = self._modules.get(path) or self._modules.get(_NUMBER.sub("{}", path))
        return module and module.format(*_NUMBER.findall(path))

    def sources(self, path: str) -> Iterator[str]:
        """Returns the module of `path`, or else the fused module that contains it."""
        while path:
            module = self.module(path)
            if module is not None:
                yield module
            path = path.rpartition(".")[0]

    def targets(self, targets: Mapping[str, Target]) -> dict[str, list[Target]]:
        """Returns the targets by checkpoint tensor, from targets by layer path.

        Raises KeyError for a target that no module fills.
        """
        found: dict[str, list[Target]] = {}
        for path, target in targets.items():
            found.setdefault(self._tensor(path), []).append(target)
        return {name: self._stored(name, joined(parts)) for name, parts in found.items()}

    def _tensor(self, path: str) -> str:
        """The checkpoint's name of the tensor of a layer."""
        layer, _, suffix = path.rpartition(".")
        own, module = self.module(path), next(self.sources(layer), None)
        if own is None and module is None:
            raise KeyError(f"no module of the checkpoint fills {path}")
        return own or f"{module}.{suffix}"

    def _stored(self, name: str, parts: list[Target]) -> list[Target]:
        """The targets, with the form in which the checkpoint stores them."""
        module, _, suffix = name.rpartition(".")
        form = self.forms.get(_NUMBER.sub("{}", module))
        if form is None:
            return parts
        if suffix not in ("weight", "bias") or any(part.form for part in parts):
            raise BadModel(
                f"quantized weights are not supported in the layout of {module}; take the "
                "unquantized model"
            )
        return [replace(part, form=form) for part in parts]


class HeadNames(Names):
    """Names of norms of queries and keys that checkpoints store head by head."""

    def targets(self, targets: Mapping[str, Target]) -> dict[str, list[Target]]:
        """As `Names.targets`, a tensor for each head."""
        found: dict[str, Target] = {}
        for path, target in targets.items():
            layer, _, suffix = path.rpartition(".")
            if layer.endswith((".q_norm", ".k_norm")):
                rows = (_head(target, head) for head in range(target.shape[0]))
                found |= {f"{layer}.{head}.{suffix}": row for head, row in enumerate(rows)}
            else:
                found[path] = target
        return super().targets(found)


def _head(target: Target, head: int) -> Target:
    """The target of a head's row, which another rank may have."""
    here = target.region[0]
    if here.start <= head < here.stop:
        return Target.whole(target.destination[head - here.start])
    return Target.whole(target.destination[0]).nothing()

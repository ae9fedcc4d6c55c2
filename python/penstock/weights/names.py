"""Maps names of checkpoint modules to paths of layers, and back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from penstock.weights.target import Target, joined


class Names:
    """Maps layers to the checkpoint modules of their weights.

    `modules` maps a checkpoint's module to a layer's path, with {} for a layer's number:
    "model.layers.{}.mlp.up_proj" -> "blocks.{}.mlp.gate_up.up". A fused module,
    such as gate and up in one matrix, maps to the fused layer: "blocks.{}.mlp.gate_up".
    """

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = {path: module for module, path in modules.items()}

    def module(self, path: str) -> str | None:
        """Returns the checkpoint's module of the layer at `path`; None if there is none."""
        module = self._modules.get(re.sub(r"(?<=\.)\d+(?=\.|$)", "{}", path))
        return module and module.format(*re.findall(r"(?<=\.)\d+(?=\.|$)", path))

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
            layer, _, suffix = path.rpartition(".")
            module = next(self.sources(layer), None)
            if module is None:
                raise KeyError(f"no module of the checkpoint fills {path}")
            found.setdefault(f"{module}.{suffix}", []).append(target)
        return {name: joined(parts) for name, parts in found.items()}

"""Linear layers of Penstock's in a transformers module: in weight formats, shared by ranks."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from penstock.faults import BadModel, BadSetting
from penstock.layers import Build, Cut, FreeLinear
from penstock.weights import Checkpoint, Stage, Target, load_weights

log = logging.getLogger("penstock.worker")

# Components of paths whose matrices choose experts: small, and sensitive to rounding.
ROUTERS = {"gate", "router", "shared_expert_gate"}
TOGETHER = 8  # layers that are loaded before those behind them have memory


class LinearModule(nn.Module):
    """Stands in for the library's `nn.Linear`: [..., inputs] -> [..., outputs]."""

    layer: FreeLinear
    """Set when the weights are loaded."""

    def __init__(self, outputs: int, inputs: int, bias: bool) -> None:
        super().__init__()
        self.out_features, self.in_features, self.has_bias = outputs, inputs, bias
        # The library draws weights that it does not load, if only there are some.
        self.weight, self.bias = torch.empty((0, inputs)), None

    def build(self, build: Build, cut: Cut | None) -> FreeLinear:
        """Allocates the weights; from then on a module that reads `weight` itself fails."""
        del self.weight, self.bias
        self.layer = FreeLinear(build, self.out_features, self.in_features, self.has_bias, cut)
        return self.layer

    def forward(self, x: Tensor) -> Tensor:
        """Multiplies all rows at once."""
        rows = self.layer(x.reshape(-1, x.shape[-1]))
        return rows.view(*x.shape[:-1], rows.shape[-1])


class OwnLinears:
    """The linear layers of one model that are ours, because their weights have a format or ranks
    share them; Penstock loads them."""

    def __init__(self, build: Build, cuts: Mapping[str, Cut], while_loading: bool) -> None:
        """`cuts`: how ranks share layers; `while_loading`: floats are quantized, but not those of
        routers."""
        self.build = build
        self.cuts = cuts
        self.while_loading = while_loading
        self.modules: dict[str, LinearModule] = {}
        self.layers: dict[str, FreeLinear] = {}

    def replacing(self, cls: type[nn.Module]) -> type[nn.Module]:
        """Returns a class of the same models, in which these linear layers are ours."""
        replace = self._replace

        def __init__(model: Any, config: Any) -> None:
            cls.__init__(model, config)
            replace(model)

        return type(cls.__name__, (cls,), {"__init__": __init__, "__module__": cls.__module__})

    def _replace(self, model: Any) -> None:
        """Replaces the linear layers of a module. Raises BadSetting if there are none."""
        for path, module in list(model.named_modules()):
            if not isinstance(module, nn.Linear) or module is model.get_output_embeddings():
                continue
            router = self.while_loading and not ROUTERS.isdisjoint(path.split("."))
            plain = router or self.build.methods.of(path) is self.build.methods.plain
            if plain and path not in self.cuts:
                continue
            ours = LinearModule(module.out_features, module.in_features, module.bias is not None)
            model.set_submodule(path, ours)
            self.modules[path] = ours
        if not self.modules:
            raise BadSetting(
                "no linear layer of transformers' module can have a weight format; leave "
                "--quantize out, or serve the unquantized checkpoint"
            )
        known = getattr(model, "_keys_to_ignore_on_load_unexpected", None)
        model._keys_to_ignore_on_load_unexpected = {*(known or ()), self._names}

    @property
    def _names(self) -> str:
        """A pattern of the names of their tensors."""
        return rf"^(?:{'|'.join(map(re.escape, self.modules))})\.[^.]+$"

    def load(self, directory: Path, progress: Callable[[int, int], None]) -> None:
        """Reads the weights. Raises BadModel, naming tensors that are missing, left over or
        mis-shaped."""
        for path, module in self.modules.items():
            self.layers[path] = module.build(self.build.below(path), self.cuts.get(path))
        ignored = (f"(?!{self._names}).*", *self.build.methods.unread)
        with Checkpoint(directory) as checkpoint:
            load_weights(checkpoint, self, ignored, progress)
        log.info("%d linear layers of transformers' module are Penstock's", len(self.layers))

    def kept_bytes(self) -> int:
        """Returns the bytes of the weights as they are kept."""
        return sum(tensor.nbytes for layer in self.layers.values() for tensor in layer.kept())

    def checkpoint_targets(self) -> dict[str, list[Target]]:
        """Returns the targets of each tensor by its name in checkpoints."""
        return self._targets(self.layers)

    def stages(self) -> list[Stage]:
        """Returns how to load some layers after others."""
        paths = list(self.layers)
        return [
            self._stage(paths[first : first + TOGETHER]) for first in range(0, len(paths), TOGETHER)
        ]

    def finish(self) -> None:
        """Lets every layer repack its weights."""
        for layer in self.layers.values():
            layer.finish()

    def _targets(self, paths: Iterable[str]) -> dict[str, list[Target]]:
        return {
            f"{path}.{name}": [target]
            for path in paths
            for name, target in self.layers[path].targets().items()
        }

    def _stage(self, paths: Sequence[str]) -> Stage:
        def begin() -> dict[str, list[Target]]:
            for path in paths:
                self.layers[path].prepare()
            return self._targets(paths)

        def finish() -> None:
            for path in paths:
                self.layers[path].finish()

        return Stage(begin, finish)


def reads_weights(error: AttributeError) -> BadModel:
    """What is wrong where the module itself reads the matrix of a layer that we replaced."""
    return BadModel(
        f"transformers' module reads the weights of a linear layer itself ({error}), so they can "
        "have no weight format, and ranks cannot share them; leave --quantize and --tp out, and "
        "serve the unquantized checkpoint"
    )

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
from penstock.models.fallback.names import renamed
from penstock.models.fallback.plan import ROUTERS, LinearShare
from penstock.weights import Checkpoint, Stage, Target, load_weights

log = logging.getLogger("penstock.worker")

TOGETHER = 8  # layers that are loaded before those behind them have memory
TILE = 128  # outputs that no weight format cuts


class LinearModule(nn.Module):
    """Stands in for the library's `nn.Linear`: [..., inputs] -> [..., outputs]."""

    layer: FreeLinear
    """Set when the weights are loaded."""
    whole: bool = False
    """Whether ranks share it, and `forward` has whole rows nevertheless."""

    def __init__(self, outputs: int, inputs: int, bias: bool) -> None:
        super().__init__()
        self.out_features, self.in_features, self.has_bias = outputs, inputs, bias
        # The library draws weights that it does not load, if only there are some.
        self.weight, self.bias = torch.empty((0, inputs)), None

    def build(self, build: Build, share: LinearShare | None) -> FreeLinear:
        """Allocates the weights; from then on a module that reads `weight` itself fails."""
        del self.weight, self.bias
        if share is not None and share.optional and not self._divides(build):
            share = None
        cut = None if share is None else share.cut
        self.whole = share is not None and share.whole
        self.layer = FreeLinear(build, self.out_features, self.in_features, self.has_bias, cut)
        return self.layer

    def _divides(self, build: Build) -> bool:
        """Whether ranks can share the outputs equally, whatever the weight format is."""
        plain = build.method() is build.methods.plain
        return self.out_features % (build.group.size * (1 if plain else TILE)) == 0

    def forward(self, x: Tensor) -> Tensor:
        """Multiplies all rows at once."""
        rows, group = x.reshape(-1, x.shape[-1]), self.layer.group
        if self.whole and self.layer.cut is Cut.INPUTS:
            rows = rows.chunk(group.size, dim=1)[group.rank].contiguous()
        rows = self.layer(rows)
        if self.whole and self.layer.cut is Cut.OUTPUTS:
            rows = group.join_columns(rows)
        return rows.view(*x.shape[:-1], rows.shape[-1])


class OwnLinears:
    """The linear layers of one model that are ours, because their weights have a format or ranks
    share them; Penstock loads them."""

    def __init__(
        self, build: Build, shares: Mapping[str, LinearShare], while_loading: bool
    ) -> None:
        """`shares`: how ranks share layers; `while_loading`: floats are quantized, but not those of
        routers."""
        self.build = build
        self.shares = shares
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
            if plain and path not in self.shares:
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

    def load(self, directory: Path, model: Any, progress: Callable[[int, int], None]) -> None:
        """Reads the weights; `model` has the modules. Raises BadModel, naming tensors that are
        missing, left over or mis-shaped."""
        for path, module in self.modules.items():
            self.layers[path] = module.build(self.build.below(path), self.shares.get(path))
        ignored = (f"(?!{self._names}).*", *self.build.methods.unread)
        with Checkpoint(directory) as checkpoint:
            checkpoint.rename(renamed(model, checkpoint))
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

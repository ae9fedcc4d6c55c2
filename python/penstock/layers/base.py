"""The base class of layers, the context in which they are built, and the residual stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.config import RopeSpec
from penstock.faults import BadModel
from penstock.layers.rope import rope_table
from penstock.parallel import Group
from penstock.quant import LinearMethod, Methods
from penstock.weights import Names, Target


@dataclass(frozen=True)
class Build:
    """The context in which a layer is built. The worker's loader creates the root's."""

    dtype: torch.dtype
    device: torch.device
    group: Group
    methods: Methods
    """The weight format of each matrix, by its module's path in the checkpoint."""
    positions: int = 0
    """Tokens of the longest sequence: rows of the RoPE tables."""
    expert_parallel: bool = False
    """Whether ranks share the experts of a layer, not the inner dimension of each expert."""
    path: str = ""
    """Where in the model's tree the layer is; set by `below`."""
    names: Names = field(default_factory=lambda: Names({}))
    """The checkpoint's name of each path; set by the model."""
    _rope_tables: dict[tuple[RopeSpec | None, int], torch.Tensor] = field(default_factory=dict)

    def below(self, name: str) -> Build:
        """Returns the context of the child `name` of this layer."""
        return replace(self, path=f"{self.path}.{name}" if self.path else name)

    def method(self, parts: Iterable[str] = ("",)) -> LinearMethod:
        """Returns the weight format of this layer's matrix, or the one that all `parts` must share.

        Raises BadModel if they have different formats.
        """
        paths = [f"{self.path}.{part}" if part else self.path for part in parts]
        modules = [next(self.names.sources(path), path) for path in paths]
        methods = [self.methods.of(module) for module in modules]
        if any(method is not methods[0] for method in methods):
            raise BadModel(
                f"config.json: quantization_config gives {', '.join(modules)} different weight "
                "formats; they are multiplied as one matrix, so they must have the same"
            )
        return methods[0]

    def rope_table(self, rope: RopeSpec | None, head_dim: int) -> torch.Tensor:
        """Returns cosines and sines [positions, head_dim] float32; layers of equal RoPE share
        them."""
        if (rope, head_dim) not in self._rope_tables:
            table = rope_table(rope, head_dim, self.positions).to(self.device)
            self._rope_tables[rope, head_dim] = table
        return self._rope_tables[rope, head_dim]

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Allocates an uninitialised tensor for weights, by default of the model's dtype."""
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.device)


class Layer:
    """A node of the model's tree. Its attributes that are layers are its children.

    It is no torch.nn.Module, whose call and attribute overhead exceeds a small layer's work.
    """

    def walk(self, prefix: str = "") -> Iterator[tuple[str, Layer]]:
        """Yields this layer and all below it, with their paths."""
        yield prefix, self
        for name, child in self.children():
            yield from child.walk(f"{prefix}.{name}" if prefix else name)

    def children(self) -> Iterator[tuple[str, Layer]]:
        """The layers directly below this one, with their paths."""
        for name, value in vars(self).items():
            for index, child in _children(value):
                yield f"{name}.{index}" if index else name, child

    def targets(self) -> dict[str, Target]:
        """Returns the targets of this layer's own weights, by name."""
        return {}

    def all_targets(self, prefix: str = "") -> dict[str, Target]:
        """The weights of the whole tree, by path below `prefix`."""
        return {
            f"{path}.{name}": target
            for path, layer in self.walk(prefix)
            for name, target in layer.targets().items()
        }

    def kept(self) -> Iterator[torch.Tensor]:
        """Yields the layer's own weights as it keeps them; after `finish`."""
        for target in self.targets().values():
            yield target.destination

    def kept_bytes(self) -> int:
        """Returns the bytes of the tree's weights, shared ones once; after `finish`."""
        tensors = [tensor for _, layer in self.walk() for tensor in layer.kept()]
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())

    def prepare(self) -> None:
        """Called once before weights are loaded, to allocate those that are on the meta device."""

    def finish(self) -> None:
        """Called once when all weights of the tree are loaded."""


class Residual(NamedTuple):
    """The sum of all layer outputs so far: `total` + x.

    The next norm adds the two, and all-reduces x if it is a partial sum. Layers handle everything
    else about tensor parallelism internally.
    """

    x: Tensor
    """[T, H], the last layer's output."""
    total: Tensor | None
    """[T, H], the sum before it, the same on every rank; None where x includes it."""
    partial: bool
    """Whether x is this rank's part of a sum over the ranks, not the same on every rank."""


def _children(value: object) -> list[tuple[str, Layer]]:
    if isinstance(value, Layer):
        return [("", value)]
    if isinstance(value, list):
        return [(str(i), v) for i, v in enumerate(value) if isinstance(v, Layer)]
    return []

"""Which method multiplies by each matrix of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.faults import BadModel
from penstock.quant.method import LinearMethod


@dataclass(frozen=True)
class Methods:
    """The method of each matrix of a checkpoint."""

    plain: LinearMethod
    """Of matrices that no format converts, and of embeddings that serve as heads."""
    quantized: LinearMethod | None = None
    """Of all others; None = there are none."""
    kept: tuple[str, ...] = ()
    """Modules that stay plain: a path in the checkpoint, or components that follow each other."""
    unused: tuple[str, ...] = ()
    """Patterns of names of tensors that the format stores and does not need."""

    def of(self, path: str) -> LinearMethod:
        """The method of the module at a path of the checkpoint."""
        inside = any(f".{module}." in f".{path}." for module in self.kept)
        return self.plain if self.quantized is None or inside else self.quantized

    @property
    def recordable(self) -> bool:
        """Whether a tape can hold all products."""
        return self.plain.recordable and (self.quantized is None or self.quantized.recordable)


def kept_modules(config: Mapping[str, Any], name: str = "modules_to_not_convert") -> list[str]:
    """The modules that a quantization_config lists under `name` as not converted."""
    found = config.get(name) or []
    if not isinstance(found, list) or not all(isinstance(module, str) for module in found):
        raise BadModel(
            f"config.json: quantization_config.{name} must be a list of modules, found {found!r}"
        )
    return found

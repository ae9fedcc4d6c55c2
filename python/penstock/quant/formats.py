"""Which weight format each matrix of a checkpoint has."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from penstock.faults import BadModel
from penstock.quant.method import LinearMethod
from penstock.quant.unquantized import Plain, Transposed, Unquantized


@dataclass(frozen=True)
class Methods:
    """The method of each matrix of a checkpoint."""

    plain: LinearMethod
    """Of matrices that no format converts, and of embeddings that serve as heads."""
    quantized: LinearMethod | None = None
    """Of all others; None = there are none."""
    kept: tuple[str, ...] = ()
    """Modules that stay plain: a path in the checkpoint, or components that follow each other. A
    star stands for anything."""
    unused: tuple[str, ...] = ()
    """Patterns of checkpoint tensors that have no place: regular expressions."""

    def of(self, path: str) -> LinearMethod:
        """The method of the module at a path of the checkpoint."""
        inside = any(_inside(path, module) for module in self.kept)
        return self.plain if self.quantized is None or inside else self.quantized

    @property
    def recordable(self) -> bool:
        """Whether a tape can hold all products."""
        return self.plain.recordable and (self.quantized is None or self.quantized.recordable)


KV_SCALES = (r".*\.self_attn\.(?:[kv]_proj\.)?(?:kv|k|v|q|prob)_scale",)
"""Scales of a quantized KV cache. The cache has the dtype that the server was started with."""

FORMATS: dict[str, Callable[[Mapping[str, Any], Plain], Methods]] = {}
"""Per `quant_method`, what reads a quantization_config. It gets the plain method, and raises
BadModel for settings that it does not support."""


def read_methods(raw: Mapping[str, Any], dtype: torch.dtype, device: torch.device) -> Methods:
    """The methods that a config.json asks for. On a CPU, this also chooses the ops' kernels.

    Raises BadModel for a format that is unknown.
    """
    plain, config = _plain(dtype, device), raw.get("quantization_config")
    if not config:
        return Methods(plain)
    name = config.get("quant_method") if isinstance(config, Mapping) else None
    read = FORMATS.get(name) if isinstance(name, str) else None
    if read is None:
        raise BadModel(
            f"config.json: quantization_config has quant_method {name!r}; supported quantized "
            f"models: {', '.join(sorted(FORMATS))}; or use the model's bfloat16 checkpoint"
        )
    return read(config, plain)


def _inside(path: str, module: str) -> bool:
    pattern = re.escape(module).replace(r"\*", ".*")
    return re.search(rf"(?:^|\.){pattern}(?:\.|$)", path) is not None


def kept_modules(config: Mapping[str, Any], name: str = "modules_to_not_convert") -> list[str]:
    """The modules that a quantization_config lists under `name` as not converted."""
    found = config.get(name) or []
    if not isinstance(found, list) or not all(isinstance(module, str) for module in found):
        raise BadModel(
            f"config.json: quantization_config.{name} must be a list of modules, found {found!r}"
        )
    return found


def _plain(dtype: torch.dtype, device: torch.device) -> Plain:
    if device.type != "cpu":
        return Unquantized(dtype, device)
    # Imported here: a GPU's worker needs no extension.
    from penstock import cpu
    from penstock.quant.panels import Panels

    if dtype in cpu.DTYPES and cpu.install():
        return Panels(dtype, device)
    return Transposed(dtype, device)

"""Which method multiplies by each matrix of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.faults import BadModel
from penstock.quant.method import LinearMethod
from penstock.quant.unquantized import Plain

_EXPERT = re.compile(r"\.experts\.")
KV_SCALES = (r".*\.self_attn\.(?:[kv]_proj\.)?(?:kv|k|v|q|prob)_scale",)
"""Scales of a quantized KV cache: only caches in fp8 use them (`worker/startup/kv_scales.py`)."""


@dataclass(frozen=True)
class Methods:
    """The method of each matrix of a checkpoint."""

    plain: Plain
    """Of matrices that no format converts, and of embeddings that serve as heads."""
    quantized: LinearMethod | None = None
    """Of all others; None = they are plain, too."""
    kept: tuple[str, ...] = ()
    """Modules that stay plain: a path in the checkpoint, or components that follow each other. A
    star stands for anything."""
    unused: tuple[str, ...] = ()
    """Patterns of names of tensors that the format stores and does not need."""
    experts: LinearMethod | None = None
    """Of routed experts, where they have another format; None = they have that of all others."""

    def of(self, path: str) -> LinearMethod:
        """The method of the module at a path of the checkpoint."""
        if any(_inside(path, module) for module in self.kept):
            return self.plain
        if self.experts is not None and _EXPERT.search(path):
            return self.experts
        return self.plain if self.quantized is None else self.quantized

    @property
    def formats(self) -> tuple[LinearMethod, ...]:
        """The methods of matrices that have a weight format."""
        return tuple(one for one in (self.quantized, self.experts) if one is not None)

    @property
    def unread(self) -> tuple[str, ...]:
        """Patterns of names of tensors that no matrix has."""
        return (*self.unused, *KV_SCALES)

    def floats(self) -> Methods:
        """Returns these without formats, for matrices that no checkpoint quantizes."""
        return replace(self, quantized=None, experts=None)

    @property
    def recordable(self) -> bool:
        """Whether a tape can hold all products."""
        return all(method.recordable for method in (self.plain, *self.formats))


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

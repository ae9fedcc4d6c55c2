"""Which method multiplies by each matrix of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from penstock.faults import BadModel
from penstock.quant.method import LinearMethod
from penstock.quant.unquantized import Plain

HEAD = ("lm_head",)
"""What most formats keep, whether they name it or not."""
_EXPERT = re.compile(r"\.experts\.")
_OF_HEAD = re.compile(r"(?:^|\.)lm_head\.")
_FLOATS = torch.float32, torch.bfloat16, torch.float16
_FLOAT_TENSORS = ".weight", ".bias"  # ends of the names of a matrix's tensors, without a format
KV_SCALES = (
    r".*\.self_attn\.(?:[kv]_proj\.)?(?:kv|k|v|q|prob)_scale",
    r".*\.self_attn\.(?:[qkv]_proj\.|prob_)output_scale",  # before llm-compressor had k_scale
)
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
    not_converted: tuple[str, ...] = ()
    """More modules that stay plain, by names as `modules_to_not_convert` has them: as `kept`, and
    as transformers takes them."""

    def of(self, path: str) -> LinearMethod:
        """The method of the module at a path of the checkpoint."""
        if _selector(self.kept, self.not_converted)(path):
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

    def with_plain_head(self) -> Methods:
        """Returns these for a checkpoint that stores its output head as floats."""
        return self

    def floats(self) -> Methods:
        """Returns these without formats, for matrices that no checkpoint quantizes."""
        return replace(self, quantized=None, experts=None)

    @property
    def recordable(self) -> bool:
        """Whether a tape can hold all products."""
        return all(method.recordable for method in (self.plain, *self.formats))


def with_stored_head(methods: Methods, dtypes: Mapping[str, torch.dtype]) -> Methods:
    """The methods of a checkpoint with tensors of these names and dtypes, whose head may be stored
    as floats though a format has it."""
    head = {name: dtype for name, dtype in dtypes.items() if _OF_HEAD.search(name)}
    plain = all(dtype in _FLOATS and name.endswith(_FLOAT_TENSORS) for name, dtype in head.items())
    return methods.with_plain_head() if head and plain else methods


@lru_cache(maxsize=16)
def _selector(kept: tuple[str, ...], not_converted: tuple[str, ...]) -> Callable[[str], bool]:
    """Whether a path is that of a module which one of the names selects.

    The components of a name follow each other anywhere in the path, as vLLM and AutoAWQ take them.
    transformers takes the beginning of the path, as a regular expression, and the end of it.
    """
    components = [re.escape(name).replace(r"\*", ".*") for name in (*kept, *not_converted) if name]
    inside = re.compile(rf"(?:^|\.)(?:{'|'.join(components) or '(?!)'})(?:\.|$)")
    starts = beginnings(not_converted)

    def selects(path: str) -> bool:
        if inside.search(path) or path.endswith(not_converted):
            return True
        return any(pattern.match(path) for pattern in starts)

    return selects


def beginnings(names: Sequence[str]) -> list[re.Pattern[str]]:
    """Expressions for the beginnings of paths that end where a component does, or in its dot.

    Those without groups are one: lists of hundreds of names are common. A name that is no
    expression has none.
    """
    joined: list[str] = []
    others: list[str] = []
    for name in names:
        try:
            re.compile(f"(?:{name})")
        except re.error:
            continue
        (others if re.search(r"[(\\]", name) else joined).append(f"(?:{name})")
    alternatives = ["|".join(joined), *others] if joined else others
    return [re.compile(rf"(?:{one})(?:(?<=\.)|(?=\.|$))") for one in alternatives]


def kept_modules(
    config: Mapping[str, Any], name: str = "modules_to_not_convert"
) -> tuple[str, ...]:
    """The modules that a quantization_config lists under `name` as not converted."""
    found = config.get(name) or []
    if not isinstance(found, list) or not all(isinstance(module, str) for module in found):
        raise BadModel(
            f"config.json: quantization_config.{name} must be a list of modules, found {found!r}"
        )
    return tuple(found)

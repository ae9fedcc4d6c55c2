"""Checkpoints of the compressed-tensors library: groups of modules, each with a format."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.faults import BadModel
from penstock.quant.compressed_ints import read_int_quantized, read_pack_quantized
from penstock.quant.fp8 import read_float_quantized
from penstock.quant.method import LinearMethod
from penstock.quant.methods import HEAD, Methods, kept_modules
from penstock.quant.mx import read_mxfp4_packed, read_nvfp4_packed
from penstock.quant.mxfp8 import read_mxfp8_quantized
from penstock.quant.settings import Settings
from penstock.quant.unquantized import Plain

LINEAR = "Linear"  # the class of modules that are matrices
UNUSED = (r".*\.weight_shape", r".*\.input_zero_point")


def read_naive_quantized(group: Settings, plain: Plain) -> LinearMethod:
    """A group of "naive-quantized": floats or integers of 8 bits."""
    integer = group.below("weights").get("type") == "int"
    return (read_int_quantized if integer else read_float_quantized)(group, plain)


SCHEMES: dict[str, Callable[[Settings, Plain], LinearMethod]] = {
    "float-quantized": read_float_quantized,
    "int-quantized": read_int_quantized,
    "mxfp4-pack-quantized": read_mxfp4_packed,
    "mxfp8-quantized": read_mxfp8_quantized,
    "naive-quantized": read_naive_quantized,
    "nvfp4-pack-quantized": read_nvfp4_packed,
    "pack-quantized": read_pack_quantized,
}
"""Per format, what reads a group of `config_groups`. It raises BadModel for settings that it does
not support; `targets` and `format` are read already."""


@dataclass(frozen=True)
class ModuleGroup:
    """Modules that share a method."""

    targets: tuple[str, ...]
    method: LinearMethod


@dataclass(frozen=True)
class GroupedMethods(Methods):
    """Modules are selected by name, by a regular expression or by their class, Linear."""

    targets: Mapping[str, LinearMethod] = field(default_factory=dict)
    """The method of what a group selects, in the order in which targets decide."""
    ignored: tuple[str, ...] = ()

    def of(self, path: str) -> LinearMethod:
        """The method of the first target that selects the module."""
        if not _selected(self.ignored, path):
            for target, method in self.targets.items():
                if _selected((target,), path):
                    return method
        return self.plain

    def with_plain_head(self) -> GroupedMethods:
        """As for vLLM, the class Linear does not have the head then: exporters that quantize only
        layers need not list it as ignored."""
        if any(_selected((target,), *HEAD) for target in self.targets if target != LINEAR):
            return self
        return replace(self, ignored=(*self.ignored, r"re:(?:.*\.)?lm_head$"))

    @property
    def formats(self) -> tuple[LinearMethod, ...]:
        """The methods of matrices that have a weight format."""
        return tuple(self.targets.values())


def _by_precedence(groups: Iterable[ModuleGroup]) -> dict[str, LinearMethod]:
    """The method of each target, in the library's order: names, expressions by their letters, the
    class. Of groups with the same target, the last one counts."""
    found = {target: group.method for group in groups for target in group.targets}
    order = sorted(found, key=lambda target: (target == LINEAR, "re:" in target, target))
    return {target: found[target] for target in order}


def _selected(targets: Iterable[str], path: str) -> bool:
    """As the library selects modules of class Linear."""
    for target in targets:
        if target.startswith("re:"):
            if re.match(target.removeprefix("re:"), path):
                return True
        elif target in (path, LINEAR):
            return True
    return False


def read_compressed_tensors(config: Mapping[str, Any], plain: Plain) -> Methods:
    """quant_method "compressed-tensors"."""
    settings = Settings(config)
    sparsity = settings.get("sparsity_config")
    if isinstance(sparsity, Mapping) and sparsity.get("format", "dense") != "dense":
        raise settings.error(
            f"sparsity_config: matrices in the sparse format {sparsity.get('format')!r} (2:4 or "
            "others) are not supported; serve the dense checkpoint"
        )
    settings.skip("quant_method", "version", "global_compression_ratio", "kv_cache_scheme")
    settings.skip("provider")
    settings.choice("quantization_status", ("compressed", "frozen"), "compressed")
    common = settings.get("format")
    groups, ignored = settings.get("config_groups"), kept_modules(config, "ignore")
    if not isinstance(groups, Mapping) or not groups:
        raise settings.error(f"config_groups must be an object of groups, found {groups!r}")
    settings.skip("ignore")
    settings.done()
    where = "quantization_config.config_groups"
    found = []
    for name, group in groups.items():
        if not isinstance(group, Mapping):
            raise settings.error(f"config_groups.{name} must be an object, found {group!r}")
        found.append(_group(Settings(group, f"{where}.{name}"), common, plain))
    for target in [*ignored, *(target for group in found for target in group.targets)]:
        _check_target(target)
    targets = _by_precedence(found)
    return GroupedMethods(plain, unused=UNUSED, targets=targets, ignored=tuple(ignored))


def _group(settings: Settings, common: Any, plain: Plain) -> ModuleGroup:
    targets = settings.get("targets")
    if not isinstance(targets, list) or not all(isinstance(one, str) for one in targets):
        raise settings.error(f"targets must be a list of modules, found {targets!r}")
    name = settings.get("format", common)
    read = SCHEMES.get(name) if isinstance(name, str) else None
    if read is None:
        known = ", ".join(sorted(SCHEMES))
        raise settings.error(f"format {name!r} is not supported; supported: {known}")
    method = read(settings, plain)
    settings.done()
    return ModuleGroup(tuple(targets), method)


def _check_target(target: str) -> None:
    try:
        re.compile(target.removeprefix("re:") if target.startswith("re:") else "")
    except re.error as error:
        raise BadModel(
            f"config.json: quantization_config selects modules by {target!r}, which is no regular "
            f"expression: {error}"
        ) from error

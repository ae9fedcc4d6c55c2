"""Checkpoints of NVIDIA's Model Optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.quant.fp8 import PER_OUTPUT, PER_TENSOR, Fp8, Fp8Layout
from penstock.quant.method import LinearMethod
from penstock.quant.methods import HEAD, Methods, kept_modules
from penstock.quant.mx import MX_GROUP, NV_GROUP, NvFp4, NvNames
from penstock.quant.mxfp8 import MxFp8
from penstock.quant.settings import Settings
from penstock.quant.unquantized import Plain
from penstock.weights import AnyOf, FlatBlocks

STATIC = Fp8Layout(PER_TENSOR, activations=("input_scale",))
# A scale per output is a vector here, a column in other tools' files.
PER_CHANNEL = Fp8Layout(AnyOf((FlatBlocks(1), PER_OUTPUT)))
NV_NAMES = NvNames("weight", "weight_scale_2", False, "input_scale")
NV_WEIGHTS = NvNames("weight", "weight_scale_2", False)
ALGORITHMS: dict[str, tuple[int, Callable[[Plain], LinearMethod]]] = {
    "FP8": (NV_GROUP, lambda plain: Fp8(plain, STATIC)),
    "FP8_PER_CHANNEL_PER_TOKEN": (NV_GROUP, lambda plain: Fp8(plain, PER_CHANNEL)),
    "MXFP8": (MX_GROUP, MxFp8),
    "NVFP4": (NV_GROUP, lambda plain: NvFp4(plain, NV_NAMES)),
    "W4A16_NVFP4": (NV_GROUP, lambda plain: NvFp4(plain, NV_WEIGHTS)),
}
"""Per `quant_algo`, the `group_size` that a file may have (in FP8 it has no meaning), and the
method."""
NVFP4 = "NVFP4", "W4A16_NVFP4"
MIXED = "MIXED_PRECISION"


@dataclass(frozen=True)
class MixedMethods(Methods):
    """Each module has a method of its own, or that of a module around it."""

    modules: Mapping[str, LinearMethod] = field(default_factory=dict)

    def of(self, path: str) -> LinearMethod:
        """The method of the module at a path of the checkpoint."""
        while path:
            if path in self.modules:
                return self.modules[path]
            path = path.rpartition(".")[0]
        return self.plain

    @property
    def formats(self) -> tuple[LinearMethod, ...]:
        """The methods of matrices that have a weight format."""
        return tuple(self.modules.values())


def read_modelopt(config: Mapping[str, Any], plain: Plain) -> Methods:
    """quant_method "modelopt": one of ALGORITHMS for all modules, or one for each.

    The settings are those of config.json, or those of hf_quant_config.json, in `quantization`.
    """
    config = _joined(config)
    settings = Settings(config)
    # The algorithm says what `config_groups` repeats for other readers.
    settings.skip("quant_method", "config_groups", "producer", "kv_cache_scheme")
    settings.skip("quantization", "kv_cache_quant_algo", "ignore", "exclude_modules")
    if settings.choice("quant_algo", (*ALGORITHMS, MIXED)) == MIXED:
        modules = _modules(settings, plain)
        settings.done()
        return MixedMethods(plain, modules=modules)
    method = _method(settings, plain)
    settings.done()
    kept = {*HEAD, *kept_modules(config, "ignore"), *kept_modules(config, "exclude_modules")}
    return Methods(plain, method, tuple(sorted(kept)))


def read_modelopt_fp4(config: Mapping[str, Any], plain: Plain) -> Methods:
    """quant_method "modelopt_fp4", vLLM's name of "modelopt" with nvfp4. Raises BadModel for other
    algorithms."""
    Settings(_joined(config)).choice("quant_algo", NVFP4)
    return read_modelopt(config, plain)


def _joined(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """With what is inside `quantization`."""
    inner = config.get("quantization")
    return {**config, **inner} if isinstance(inner, Mapping) else config


def _method(settings: Settings, plain: Plain) -> LinearMethod:
    group, make = ALGORITHMS[settings.choice("quant_algo", ALGORITHMS)]
    settings.choice("group_size", (group,), group)
    return make(plain)


def _modules(settings: Settings, plain: Plain) -> dict[str, LinearMethod]:
    """The method of each module that `quantized_layers` names."""
    layers = settings.below("quantized_layers")
    found = {}
    for name in layers.names():
        own = layers.below(name)
        found[name] = _method(own, plain)
        own.done()
    return found

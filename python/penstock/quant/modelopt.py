"""Checkpoints of NVIDIA's Model Optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.quant.fp8 import PER_TENSOR, Fp8, Fp8Layout
from penstock.quant.method import LinearMethod
from penstock.quant.methods import Methods, kept_modules
from penstock.quant.mx import NV_GROUP, NvFp4, NvNames
from penstock.quant.settings import Settings
from penstock.quant.unquantized import Plain


def read_modelopt(config: Mapping[str, Any], plain: Plain) -> Methods:
    """quant_method "modelopt": NVFP4, and FP8 with a scale per matrix.

    The settings are those of config.json, or those of hf_quant_config.json, in `quantization`.
    """
    inner = config.get("quantization")
    config = {**config, **inner} if isinstance(inner, Mapping) else config
    settings = Settings(config)
    # The algorithm says what `config_groups` repeats for other readers.
    settings.skip("quant_method", "config_groups", "producer", "kv_cache_scheme")
    settings.skip("quantization", "kv_cache_quant_algo", "ignore", "exclude_modules")
    settings.choice("group_size", (NV_GROUP,), NV_GROUP)
    method: LinearMethod
    if settings.choice("quant_algo", ("FP8", "NVFP4")) == "FP8":
        method = Fp8(plain, Fp8Layout(PER_TENSOR, activations=("input_scale",)))
    else:
        method = NvFp4(plain, NvNames("weight", "weight_scale_2", False, "input_scale"))
    settings.done()
    kept = {"lm_head", *kept_modules(config, "ignore"), *kept_modules(config, "exclude_modules")}
    return Methods(plain, method, tuple(sorted(kept)))

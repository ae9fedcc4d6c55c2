"""Checkpoints of NVIDIA's Model Optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.quant.fp8 import PER_TENSOR, Fp8, Fp8Layout
from penstock.quant.method import LinearMethod
from penstock.quant.methods import Methods, kept_modules
from penstock.quant.mx import MX_GROUP, NV_GROUP, NvFp4, NvNames
from penstock.quant.mxfp8 import MxFp8
from penstock.quant.settings import Settings
from penstock.quant.unquantized import Plain

GROUPS = {"FP8": NV_GROUP, "MXFP8": MX_GROUP, "NVFP4": NV_GROUP}
"""Per `quant_algo`, the `group_size` that a file may have; in FP8 it has no meaning."""


def read_modelopt(config: Mapping[str, Any], plain: Plain) -> Methods:
    """quant_method "modelopt": NVFP4, MXFP8, and FP8 with a scale per matrix.

    The settings are those of config.json, or those of hf_quant_config.json, in `quantization`.
    """
    inner = config.get("quantization")
    config = {**config, **inner} if isinstance(inner, Mapping) else config
    settings = Settings(config)
    # The algorithm says what `config_groups` repeats for other readers.
    settings.skip("quant_method", "config_groups", "producer", "kv_cache_scheme")
    settings.skip("quantization", "kv_cache_quant_algo", "ignore", "exclude_modules")
    algorithm = settings.choice("quant_algo", GROUPS)
    settings.choice("group_size", (GROUPS[algorithm],), GROUPS[algorithm])
    settings.done()
    method: LinearMethod
    if algorithm == "FP8":
        method = Fp8(plain, Fp8Layout(PER_TENSOR, activations=("input_scale",)))
    elif algorithm == "MXFP8":
        method = MxFp8(plain)
    else:
        method = NvFp4(plain, NvNames("weight", "weight_scale_2", False, "input_scale"))
    kept = {"lm_head", *kept_modules(config, "ignore"), *kept_modules(config, "exclude_modules")}
    return Methods(plain, method, tuple(sorted(kept)))

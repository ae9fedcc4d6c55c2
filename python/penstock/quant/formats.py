"""Which weight format each matrix of a checkpoint has."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from penstock_kernels.packed_linear import Kind

from penstock.faults import BadModel, BadSetting
from penstock.quant.awq import Awq
from penstock.quant.fp8 import Fp8
from penstock.quant.gptq import Gptq
from penstock.quant.method import LinearMethod
from penstock.quant.methods import HEAD, Methods, kept_modules
from penstock.quant.rtn import RoundToNearest
from penstock.quant.unquantized import Plain, Transposed, Unquantized

__all__ = ["FORMATS", "WHILE_LOADING", "Methods", "kept_modules", "read_methods"]

log = logging.getLogger("penstock.worker")

FORMATS: dict[str, Callable[[Mapping[str, Any], Plain], Methods]] = {}
"""Per `quant_method`, what reads a quantization_config. It gets the plain method, and raises
BadModel for settings that it does not support."""

WHILE_LOADING: dict[str, Callable[[Plain], LinearMethod]] = {
    "eetq": lambda plain: RoundToNearest(Kind.INT8, plain, 0, symmetric=True),
    "fp8": lambda plain: RoundToNearest(Kind.FP8, plain, 0),
    "int4": lambda plain: RoundToNearest(Kind.INT4, plain, 128),
    "int4-mse": lambda plain: RoundToNearest(Kind.INT4, plain, 128, search=True),
}
"""Per value of --quantize, the method that quantizes floats while they are loaded."""

AGREEING: dict[str, tuple[str, ...]] = {
    "awq": ("awq",),
    "bitsandbytes": ("bitsandbytes",),
    "bitsandbytes-fp4": ("bitsandbytes",),
    "bitsandbytes-nf4": ("bitsandbytes",),
    "eetq": ("eetq",),
    "fp8": ("fp8", "fbgemm_fp8"),
    "gptq": ("gptq",),
    "int4": (),
    "int4-mse": (),
    "marlin": ("gptq", "marlin"),
}
"""Per value of --quantize, the `quant_method` of checkpoints that it agrees with."""

AGREEING_FORMATS: dict[str, type] = {"awq": Awq, "fp8": Fp8, "gptq": Gptq, "marlin": Gptq}
"""Per value of --quantize, the method of matrices of checkpoints that it agrees with, whatever
their `quant_method` is: AutoRound, compressed-tensors and ModelOpt have several formats."""

COMPRESSED = "compressed-tensors"
BITSANDBYTES = "bitsandbytes"


def read_methods(
    raw: Mapping[str, Any], dtype: torch.dtype, device: torch.device, quantize: str = ""
) -> Methods:
    """The methods that a config.json asks for, or --quantize; on a CPU, this also chooses the ops'
    kernels.

    Raises BadModel for a format that is unknown, BadSetting for a --quantize that contradicts it.
    """
    plain, config = _plain(dtype, device), _stored(raw)
    if quantize and quantize not in AGREEING:
        known = ", ".join(sorted(AGREEING))
        raise BadSetting(f"quantize {quantize!r} is unknown; choose one of {known}")
    if device.type == "cpu" and (quantize or config is not None):
        log.warning(
            "a CPU has no kernels for quantized weights: they are dequantized while loading, "
            "and take as much memory as a model in %s",
            str(dtype).removeprefix("torch."),
        )
    if config is None:
        return _while_loading(quantize, plain)
    name = config.get("quant_method")
    read = FORMATS.get(name) if isinstance(name, str) else None
    if read is None:
        raise BadModel(
            f"config.json: quantization_config has quant_method {name!r}, which is not supported; "
            f"supported: {', '.join(sorted(FORMATS))}. Use another checkpoint, or one that is not "
            "quantized, with --quantize"
        )
    methods = read(config, plain)
    if quantize and not _agrees(quantize, config, methods):
        raise BadSetting(
            f"--quantize {quantize} contradicts the checkpoint, whose quantization_config has "
            f"{_described(config)}; leave --quantize out, or serve the unquantized checkpoint"
        )
    return methods


def _stored(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The settings of a quantized checkpoint."""
    text = raw.get("text_config")
    for config in (raw, text if isinstance(text, Mapping) else {}):
        for name, method in (("quantization_config", None), ("compression_config", COMPRESSED)):
            found = config.get(name)
            if found:
                if not isinstance(found, Mapping):
                    raise BadModel(f"config.json: {name} must be an object, found {found!r}")
                # Of experts; newer files have it inside.
                kind = config.get("expert_dtype")
                outside = {} if kind is None else {"expert_dtype": kind}
                return {"quant_method": method or _implied(found), **outside, **found}
    return None


def _implied(config: Mapping[str, Any]) -> str | None:
    """The method that fields imply: transformers before 4.33 named none, and had only one."""
    four, eight = config.get("load_in_4bit"), config.get("load_in_8bit")
    return BITSANDBYTES if four or eight else None


def _agrees(quantize: str, config: Mapping[str, Any], methods: Methods) -> bool:
    made = AGREEING_FORMATS.get(quantize)
    if made and methods.formats and all(isinstance(one, made) for one in methods.formats):
        return True
    if config["quant_method"] not in AGREEING[quantize]:
        return False
    return not quantize.startswith("bitsandbytes") or quantize == _bitsandbytes(config)


def _bitsandbytes(config: Mapping[str, Any]) -> str:
    """The value of --quantize that a bitsandbytes checkpoint agrees with."""
    four = config.get("load_in_4bit") or config.get("_load_in_4bit")
    return f"bitsandbytes-{config.get('bnb_4bit_quant_type', 'fp4')}" if four else "bitsandbytes"


def _described(config: Mapping[str, Any]) -> str:
    name = config["quant_method"]
    kind = f" ({_bitsandbytes(config)})" if name == "bitsandbytes" else ""
    return f"quant_method {name!r}{kind}"


def _while_loading(quantize: str, plain: Plain) -> Methods:
    if not quantize:
        return Methods(plain)
    make = WHILE_LOADING.get(quantize)
    if make is None:
        raise BadSetting(
            f"--quantize {quantize} needs a checkpoint in that format, and config.json has no "
            "quantization_config: make one with `penstock quantize`, or quantize while loading "
            f"with --quantize {' or '.join(sorted(WHILE_LOADING))}"
        )
    return Methods(plain, make(plain), kept=HEAD)


def _plain(dtype: torch.dtype, device: torch.device) -> Plain:
    if device.type != "cpu":
        return Unquantized(dtype, device)
    # Imported here: a GPU's worker needs no extension.
    from penstock import cpu
    from penstock.quant.panels import Panels

    if dtype in cpu.DTYPES and cpu.install():
        return Panels(dtype, device)
    return Transposed(dtype, device)

"""Weights of float8 e4m3 in groups of 32 inputs: mxfp8 (OCP microscaling formats, 2023).

Activations stay in the model's dtype, also where a checkpoint was made for activations of 8 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from penstock_kernels.packed_linear import Kind

from penstock.faults import BadSetting
from penstock.quant.fp4_experts import read_fp8_and_fp4
from penstock.quant.fp8 import static_activations, weight_settings
from penstock.quant.method import Weights, WeightTensor
from penstock.quant.methods import HEAD, Methods, kept_modules
from penstock.quant.mx import MX_GROUP, groups_of, powers
from penstock.quant.packed import Packed, Quantized
from penstock.quant.settings import Settings
from penstock.quant.unquantized import Plain

BLOCK = [1, MX_GROUP]  # outputs and inputs that share a scale, as some tools write it
SCALES = ("weight_scale",)
SCALES_OF_BLOCKS = ("weight_scale_inv", "weight_scale", "scale")


class MxFp8(Packed):
    """A byte is a code; scales are powers of two, a byte each (e8m0)."""

    def __init__(self, plain: Plain, suffixes: tuple[str, ...] = SCALES) -> None:
        """`suffixes`: what checkpoints call the scales, the most common name first."""
        super().__init__(Kind.FP8, plain)
        self.suffixes = suffixes
        self.scale_dtype = torch.bfloat16  # exact, unlike float16, whose range is too small

    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        """Codes and exponents. Raises BadModel if groups do not divide the inputs."""
        groups, device = groups_of(inputs, MX_GROUP, "mxfp8"), self.plain.device
        codes = torch.empty((outputs, inputs), dtype=torch.float8_e4m3fn, device=device)
        scales = torch.empty((outputs, groups), dtype=torch.uint8, device=device)
        return {
            "weight": WeightTensor(codes, 0, 1),
            "weight_scale": WeightTensor(scales, 0, 1, suffixes=self.suffixes),
        }

    def read(self, weights: Weights) -> Quantized:
        """The bytes, and exponents as floats."""
        codes = weights["weight"].view(torch.uint8)
        return Quantized(codes, powers(weights["weight_scale"]).t())


def read_mxfp8(config: Mapping[str, Any], plain: Plain) -> Methods:
    """quant_method "mxfp8": the settings of "fp8", with one choice each."""
    settings = Settings(config)
    settings.skip("quant_method", "dequantize", "kv_cache_scheme")
    settings.choice("fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
    settings.choice("weight_block_size", (BLOCK,), BLOCK)
    settings.choice("scale_fmt", ("ue8m0",), "ue8m0")
    settings.choice("activation_scheme", ("dynamic",), "dynamic")
    settings.choice("expert_dtype", ("fp8",), "fp8")
    settings.skip("modules_to_not_convert", "ignored_layers")
    settings.done()
    # Heads are kept even where the list does not say so, as transformers and vLLM keep them.
    kept = *kept_modules(config), *kept_modules(config, "ignored_layers")
    return Methods(plain, MxFp8(plain, SCALES_OF_BLOCKS), HEAD, not_converted=kept)


def read_fp8_or_mxfp8(config: Mapping[str, Any], plain: Plain) -> Methods:
    """quant_method "fp8": where a scale of 32 inputs is a power of two, it means mxfp8."""
    means = config.get("weight_block_size") == BLOCK and config.get("scale_fmt") == "ue8m0"
    return (read_mxfp8 if means else read_fp8_and_fp4)(config, plain)


def read_mxfp8_quantized(group: Settings, plain: Plain) -> MxFp8:
    """A group of compressed-tensors in "mxfp8-quantized"."""
    weights = weight_settings(group, "float", 8)
    weights.choice("strategy", ("group",))
    weights.choice("group_size", (MX_GROUP,))
    weights.done()
    if static_activations(group):
        raise group.error("input_activations with static scales are not supported in mxfp8")
    return MxFp8(plain)


def with_stored_experts(methods: Methods, scales: str, names: Iterable[str]) -> Methods:
    """The methods of a checkpoint with tensors of these names. If one of them ends in `scales`, its
    experts are in mxfp8 and all other matrices are floats, whatever config.json says of modules.

    Raises BadSetting for a weight format that experts in mxfp8 contradict.
    """
    found = next((name for name in names if scales and name.endswith(scales)), None)
    if found is None:
        return methods
    if methods.formats and not isinstance(methods.quantized, MxFp8):
        raise BadSetting(
            f"the checkpoint's experts are in mxfp8 (it has {found}), which contradicts --quantize "
            "or quantization_config; leave --quantize out"
        )
    return replace(methods.floats(), experts=MxFp8(methods.plain))

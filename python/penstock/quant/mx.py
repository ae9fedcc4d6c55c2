"""Weights of float4 e2m1 with small groups: mxfp4 (OCP microscaling formats, 2023) and nvfp4.

A byte holds two codes, the one of the even input in its lower half. Activations stay in the model's
dtype, also where a checkpoint was made for activations of 4 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from penstock_kernels.packed_linear import Kind
from torch import Tensor

from penstock.faults import BadModel
from penstock.quant.fp8 import PER_TENSOR, static_activations, weight_settings
from penstock.quant.method import Weights, WeightTensor
from penstock.quant.methods import HEAD, Methods, kept_modules
from penstock.quant.packed import Packed, Quantized
from penstock.quant.settings import Settings
from penstock.quant.unquantized import Plain

MX_GROUP = 32
NV_GROUP = 16


@dataclass(frozen=True)
class MxNames:
    """The tensors of a matrix in mxfp4."""

    codes: str
    scales: str
    blocked: bool = False
    """Whether codes are [outputs, inputs / 32, 16] instead of [outputs, inputs / 2]."""
    signed: bool = False
    """Whether files call the bytes of codes int8."""


@dataclass(frozen=True)
class NvNames:
    """The tensors of a matrix in nvfp4."""

    codes: str
    scale: str
    """Of the whole matrix."""
    divides: bool
    """Whether the matrix's scale divides those of the groups, rather than multiplying them."""
    activations: str | None = None
    """The scale of the activations, if the checkpoint has one."""


class MxFp4(Packed):
    """Groups of 32 inputs; scales are powers of two, a byte each (e8m0)."""

    def __init__(self, plain: Plain, names: MxNames) -> None:
        super().__init__(Kind.FP4, plain)
        self.names = names
        self.scale_dtype = torch.bfloat16  # exact, unlike float16, whose range is too small

    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        """Codes and exponents. Raises BadModel if groups do not divide the inputs."""
        groups = groups_of(inputs, MX_GROUP, "mxfp4")
        device = self.plain.device
        shape = (outputs, groups, 16) if self.names.blocked else (outputs, inputs // 2)
        kind = torch.int8 if self.names.signed else torch.uint8
        codes = torch.empty(shape, dtype=kind, device=device)
        scales = torch.empty((outputs, groups), dtype=torch.uint8, device=device)
        return {
            self.names.codes: WeightTensor(codes, 0, 1),
            self.names.scales: WeightTensor(scales, 0, 1),
        }

    def read(self, weights: Weights) -> Quantized:
        """Codes, and exponents as floats."""
        codes = weights[self.names.codes].view(torch.uint8)
        return Quantized(halves(codes.flatten(1)), powers(weights[self.names.scales]).t())


class NvFp4(Packed):
    """Groups of 16 inputs; scales are float8 e4m3, and a float32 scale is the whole matrix's."""

    def __init__(self, plain: Plain, names: NvNames) -> None:
        super().__init__(Kind.FP4, plain)
        self.names = names
        self.scale_dtype = torch.float32  # of the products of both scales

    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        """Codes, and scales of both levels. Raises BadModel if groups do not divide the inputs."""
        groups = groups_of(inputs, NV_GROUP, "nvfp4")
        device, names = self.plain.device, self.names
        codes = torch.empty((outputs, inputs // 2), dtype=torch.uint8, device=device)
        scales = torch.empty((outputs, groups), dtype=torch.float8_e4m3fn, device=device)
        found = {names.codes: WeightTensor(codes, 0, 1), "weight_scale": WeightTensor(scales, 0, 1)}
        for name in filter(None, (names.scale, names.activations)):
            whole = torch.empty((outputs, 1), dtype=torch.float32, device=device)
            found[name] = WeightTensor(whole, 0, None, PER_TENSOR)
        return found

    def read(self, weights: Weights) -> Quantized:
        """Codes, and the products of the scales."""
        scales, whole = weights["weight_scale"].float(), weights[self.names.scale]
        scales = scales / whole if self.names.divides else scales * whole
        return Quantized(halves(weights[self.names.codes]), scales.t())


def groups_of(inputs: int, group: int, name: str) -> int:
    """Groups per row. Raises BadModel if they do not divide the inputs."""
    if inputs % group:
        raise BadModel(
            f"{name} has groups of {group} inputs, but a layer (of this rank) has {inputs} inputs; "
            "use fewer ranks"
        )
    return inputs // group


def halves(packed: Tensor) -> Tensor:
    """[outputs, inputs / 2] uint8 -> codes [outputs, inputs] uint8."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)


def powers(exponents: Tensor) -> Tensor:
    """2^(exponent - 127) of uint8, exact in float32. 255, which stands for NaN, gives infinity."""
    # As the exponent of a float32; 2^-127 is the half of the smallest that has one.
    bits = (exponents.int() << 23).clamp(min=1 << 22)
    return bits.view(torch.float32)


def read_mxfp4(config: Mapping[str, Any], plain: Plain) -> Methods:
    """quant_method "mxfp4", in the layout of GPT-OSS's matrices."""
    settings = Settings(config)
    settings.skip("quant_method", "dequantize", "modules_to_not_convert")
    settings.done()
    method = MxFp4(plain, MxNames("weight_blocks", "weight_scales", blocked=True))
    return Methods(plain, method, HEAD, not_converted=kept_modules(config))


def read_mxfp4_packed(group: Settings, plain: Plain) -> MxFp4:
    """A group of compressed-tensors in "mxfp4-pack-quantized"."""
    weights = weight_settings(group, "float", 4)
    weights.choice("strategy", ("group",))
    weights.choice("group_size", (MX_GROUP,))
    weights.done()
    if static_activations(group):
        raise group.error("input_activations with static scales are not supported in mxfp4")
    return MxFp4(plain, MxNames("weight_packed", "weight_scale"))


def read_nvfp4_packed(group: Settings, plain: Plain) -> NvFp4:
    """A group of compressed-tensors in "nvfp4-pack-quantized"."""
    weights = weight_settings(group, "float", 4)
    weights.choice("strategy", ("tensor_group",))
    weights.choice("group_size", (NV_GROUP,))
    weights.done()
    activations = "input_global_scale" if static_activations(group) else None
    return NvFp4(plain, NvNames("weight_packed", "weight_global_scale", True, activations))

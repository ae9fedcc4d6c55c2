"""Checkpoints of float8 e4m3 weights: a scale per tensor, per output, or per block.

Activations stay in the model's dtype, whatever the checkpoint's activation scheme is: that is more
exact, and while weights bound the time it is as fast. Static activation scales are read (a
checkpoint that lacks them is not what its config.json says), and not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
from penstock_kernels.packed_linear import Kind

from penstock.faults import BadModel
from penstock.quant.method import Weights, WeightTensor
from penstock.quant.methods import HEAD, Methods, kept_modules
from penstock.quant.packed import Packed, Quantized
from penstock.quant.settings import Settings
from penstock.quant.unquantized import Plain
from penstock.weights import AnyOf, Blocks, Form

PER_TENSOR = Blocks((0, 0))
PER_OUTPUT = Blocks((1, 0))


@dataclass(frozen=True)
class Fp8Layout:
    """How checkpoints store scales."""

    scales: Form | None
    """Of scales that all inputs of an output share; None = scales per `block`."""
    block: tuple[int, int] = (0, 0)
    """Outputs and inputs that share a scale."""
    suffixes: tuple[str, ...] = ("weight_scale",)
    """The scales' name, and others that checkpoints use."""
    activations: tuple[str, ...] = ()
    """Likewise of the scales of static activations; () = the checkpoint has none."""


class Fp8(Packed):
    """Weights as float8 e4m3."""

    def __init__(self, plain: Plain, layout: Fp8Layout) -> None:
        super().__init__(Kind.FP8, plain)
        self.layout = layout
        self.scale_dtype = torch.float32  # bfloat16 would add an error of up to 2^-9

    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        """The matrix, its scales, and those of static activations if there are any.

        Raises BadModel if this rank's share cuts blocks where no kernel reads them.
        """
        layout, device = self.layout, self.plain.device

        def floats(columns: int) -> torch.Tensor:
            return torch.empty((outputs, columns), dtype=torch.float32, device=device)

        weight = torch.empty((outputs, inputs), dtype=torch.float8_e4m3fn, device=device)
        if layout.scales is None:
            group = shared_group(layout.block[1], inputs)
            form = Blocks((layout.block[0], layout.block[1] // group))
            scales = WeightTensor(floats(inputs // group), 0, 1, form, layout.suffixes)
        else:
            scales = WeightTensor(floats(1), 0, None, layout.scales, layout.suffixes)
        found = {"weight": WeightTensor(weight, 0, 1), "scale": scales}
        if layout.activations:
            scale = WeightTensor(floats(1), 0, None, PER_TENSOR, layout.activations)
            found["activation_scale"] = scale
        return found

    def read(self, weights: Weights) -> Quantized:
        """The bytes are the codes."""
        codes = weights["weight"].view(torch.uint8)
        return Quantized(codes, weights["scale"].t())


def shared_group(block: int, inputs: int) -> int:
    """The largest group of inputs that divides blocks, and every rank's share of inputs.

    Raises BadModel if kernels cannot read groups of that size.
    """
    group = gcd(block, inputs)
    if group % 16 and group != inputs:
        raise BadModel(
            f"blocks of {block} inputs share a scale, but a layer (of this rank) has {inputs} "
            "inputs, and a multiple of 16 must divide both; use fewer ranks"
        )
    return group


def read_fp8(config: Mapping[str, Any], plain: Plain) -> Methods:
    """quant_method "fp8": of DeepSeek, Qwen and Mistral (transformers), and of AutoFP8."""
    settings = Settings(config)
    settings.skip("quant_method", "dequantize", "kv_cache_scheme")
    settings.choice("fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
    settings.choice("weight_per_tensor", (True, False), False)
    settings.choice("scale_fmt", ("float", "ue8m0"), "float")
    scheme = settings.choice("activation_scheme", ("dynamic", "static"), "dynamic")
    activations = ("input_scale", "activation_scale") if scheme == "static" else ()
    block = settings.get("weight_block_size")
    layout = Fp8Layout(
        AnyOf((PER_TENSOR, PER_OUTPUT)),
        suffixes=("weight_scale", "weight_scale_inv"),
        activations=activations,
    )
    if block is not None:
        shape = block_shape(settings, "weight_block_size", block)
        suffixes = "weight_scale_inv", "weight_scale", "scale"
        layout = Fp8Layout(None, shape, suffixes, activations)
    # Heads are kept even where the list does not say so, as transformers and vLLM keep them.
    kept = *kept_modules(config), *kept_modules(config, "ignored_layers")
    settings.skip("modules_to_not_convert", "ignored_layers")
    settings.done()
    return Methods(plain, Fp8(plain, layout), HEAD, not_converted=kept)


def read_fbgemm_fp8(config: Mapping[str, Any], plain: Plain) -> Methods:
    """quant_method "fbgemm_fp8" (Llama 3.1 405B): a scale per output."""
    settings = Settings(config)
    # The bound of activation scales is of no use: activations are not quantized.
    settings.skip("quant_method", "activation_scale_ub", "modules_to_not_convert")
    settings.done()
    method = Fp8(plain, Fp8Layout(PER_OUTPUT))
    return Methods(plain, method, HEAD, not_converted=kept_modules(config))


def block_shape(settings: Settings, name: str, found: Any) -> tuple[int, int]:
    """Outputs and inputs of a block. Raises BadModel for a size that kernels do not read."""
    whole = isinstance(found, list | tuple) and all(type(n) is int and n > 0 for n in found)
    if not whole or len(found) != 2 or found[1] % 16:
        raise settings.error(
            f"{name} {found!r} is not supported; supported: [outputs, inputs] above 0, inputs a "
            "multiple of 16, such as [128, 128]"
        )
    return found[0], found[1]


def read_float_quantized(group: Settings, plain: Plain) -> Fp8:
    """A group of compressed-tensors in "float-quantized"."""
    weights = weight_settings(group, "float", 8)
    strategies = ("tensor", "channel", "group", "block")
    strategy = weights.choice("strategy", strategies)
    size, block = weights.get("group_size"), weights.get("block_structure")
    weights.done()
    activations = ("input_scale",) if static_activations(group) else ()
    if strategy == "tensor":
        layout = Fp8Layout(PER_TENSOR, activations=activations)
    elif strategy == "channel":
        layout = Fp8Layout(PER_OUTPUT, activations=activations)
    elif strategy == "group":
        if type(size) is not int or size <= 0 or size % 16:
            raise weights.error(f"group_size {size!r} is not supported; supported: multiples of 16")
        layout = Fp8Layout(None, (1, size), activations=activations)
    else:
        shape = block_shape(weights, "block_structure", block)
        layout = Fp8Layout(None, shape, activations=activations)
    return Fp8(plain, layout)


def weight_settings(group: Settings, kind: str, bits: int) -> Settings:
    """The settings of a group's weights, after those that all symmetric formats share.

    Raises BadModel for quantized outputs, and for weights of another type.
    """
    group.skip("targets", "format")
    weights = group.below("weights")
    weights.choice("type", (kind,))
    weights.choice("num_bits", (bits,))
    weights.choice("symmetric", (True,), True)
    weights.choice("dynamic", (False,), False)
    # How the scales were found, and dtypes that the stored tensors have anyway.
    weights.skip("observer", "observer_kwargs", "scale_dtype", "zp_dtype")
    return weights


def static_activations(group: Settings) -> bool:
    """Whether the checkpoint has a scale of the activations."""
    found = group.get("input_activations")
    # "local": a scale per group that each activation has, and one of all that is stored.
    return isinstance(found, Mapping) and found.get("dynamic") is not True

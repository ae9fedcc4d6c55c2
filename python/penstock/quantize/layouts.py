"""How checkpoints store quantized matrices, and what config.json says of them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from penstock.quant import Quantized
from penstock.quant.awq import ORDER
from penstock.quant.words import unpacked
from penstock.quantize.options import Options

Stored = Mapping[str, Tensor]
"""The tensors of a module, by suffix."""


class Kept(NamedTuple):
    """What stays as it is. Libraries would quantize it, as linear layers like any other."""

    modules: Sequence[str] = ()
    """Within decoder layers."""
    parts: Sequence[str] = ()
    """What the text model does not read, with all modules in it."""

    def names(self) -> list[str]:
        """The names of `parts` in any library: transformers calls `vision_tower`
        `model.vision_tower`, and vLLM `model.visual` `visual`."""
        short = [part.removeprefix("model.") for part in self.parts]
        return [prefix + name for name in short for prefix in ("", "model.")]

    def patterns(self) -> list[str]:
        """Regular expressions for the names of all modules in `parts`."""
        return [rf"{re.escape(name)}(?:\..*)?$" for name in self.names()]


class Layout(ABC):
    """Of a matrix [outputs, inputs]."""

    def __init__(self, options: Options, dtype: torch.dtype) -> None:
        self.options = options
        self.dtype = dtype
        """Of integers' scales."""

    @abstractmethod
    def store(self, quantized: Quantized) -> dict[str, Tensor]:
        """The tensors of the module."""

    @abstractmethod
    def matrix(self, stored: Stored) -> Tensor:
        """The matrix that they stand for, float32."""

    @abstractmethod
    def config(self, kept: Kept) -> dict[str, Any]:
        """The quantization_config, as transformers and vLLM read it."""

    def pack(self) -> int:
        """Codes in a word; layers' sides must be multiples."""
        return 32 // self.options.bits


class Gptq(Layout):
    """GPTQ's: words of codes along the inputs, and of zero points less one along the outputs."""

    def store(self, quantized: Quantized) -> dict[str, Tensor]:
        """qweight [inputs / codes of a word, outputs], qzeros, scales, g_idx."""
        bits, (groups, outputs) = self.options.bits, quantized.scales.shape
        codes, zeros = quantized.codes, quantized.zeros
        inputs = codes.shape[1]
        index = torch.arange(inputs, device=codes.device) // (inputs // groups)
        if zeros is None:
            zeros = torch.full((groups, outputs), float(1 << (bits - 1)), device=codes.device)
        return {
            "qweight": packed(codes.t(), bits, 0),
            "qzeros": packed(zeros.to(torch.uint8) - 1, bits, 1),
            "scales": quantized.scales.to(self.dtype),
            "g_idx": index.int(),
        }

    def matrix(self, stored: Stored) -> Tensor:
        """(code - zero point) * scale of the input's group."""
        bits, index = self.options.bits, stored["g_idx"].long()
        codes = unpacked(stored["qweight"], bits, 0).float()
        zeros = unpacked(stored["qzeros"], bits, 1).float() + 1
        return ((codes - zeros[index]) * stored["scales"].float()[index]).t().contiguous()

    def config(self, kept: Kept) -> dict[str, Any]:
        """quant_method "gptq"."""
        options = self.options
        modules = [f"{re.escape(module)}$" for module in kept.modules]
        rules: dict[str, Any] = {f"-:{rule}": {} for rule in (*modules, *kept.patterns())}
        return {
            "quant_method": "gptq",
            "checkpoint_format": "gptq",
            "bits": options.bits,
            "group_size": options.group or -1,
            "sym": options.symmetric,
            # Scales of groups in order of the inputs: readers need not know the columns' order.
            "desc_act": False,
            "static_groups": options.act_order,
            "damp_percent": options.damp,
            "true_sequential": False,
            "lm_head": False,
            **({"dynamic": rules} if rules else {}),
        }


class Awq(Layout):
    """AWQ's gemm layout: words of codes and zero points along the outputs."""

    def store(self, quantized: Quantized) -> dict[str, Tensor]:
        """qweight [inputs, outputs / 8], qzeros [groups, outputs / 8], scales [groups, outputs]."""
        assert quantized.zeros is not None
        return {
            "qweight": packed(quantized.codes.t(), 4, 1, ORDER),
            "qzeros": packed(quantized.zeros.to(torch.uint8), 4, 1, ORDER),
            "scales": quantized.scales.to(self.dtype),
        }

    def matrix(self, stored: Stored) -> Tensor:
        """(code - zero point) * scale."""
        codes = unpacked(stored["qweight"], 4, 1, ORDER).float()
        zeros = unpacked(stored["qzeros"], 4, 1, ORDER).float()
        repeats = len(codes) // len(zeros)
        scales = stored["scales"].float().repeat_interleave(repeats, 0)
        return ((codes - zeros.repeat_interleave(repeats, 0)) * scales).t().contiguous()

    def config(self, kept: Kept) -> dict[str, Any]:
        """quant_method "awq"."""
        return {
            "quant_method": "awq",
            "version": "gemm",
            "bits": 4,
            "group_size": self.options.group or -1,
            "zero_point": True,
            "modules_to_not_convert": [*kept.modules, *kept.names()] or None,
        }


class Fp8(Layout):
    """Compressed-tensors' float8 with a scale per output; activations are of 8 bits where a server
    multiplies them so, with a scale per token that it finds itself."""

    def store(self, quantized: Quantized) -> dict[str, Tensor]:
        """weight [outputs, inputs] float8 e4m3, weight_scale [outputs, 1] float32."""
        codes = quantized.codes.view(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale": quantized.scales.t().contiguous()}

    def matrix(self, stored: Stored) -> Tensor:
        """number * scale."""
        return stored["weight"].float() * stored["weight_scale"]

    def config(self, kept: Kept) -> dict[str, Any]:
        """quant_method "compressed-tensors"."""
        common = {"num_bits": 8, "type": "float", "symmetric": True}
        group = {
            "targets": ["Linear"],
            "weights": {**common, "strategy": "channel", "dynamic": False},
            "input_activations": {**common, "strategy": "token", "dynamic": True},
            "output_activations": None,
        }
        return {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": ["lm_head", *kept.modules, *(f"re:{rule}" for rule in kept.patterns())],
            "kv_cache_scheme": None,
        }

    def pack(self) -> int:
        """A code is a number of its own."""
        return 1


LAYOUTS: dict[str, type[Layout]] = {"awq": Awq, "fp8": Fp8, "gptq": Gptq, "rtn": Gptq}


def packed(codes: Tensor, bits: int, dim: int, order: Sequence[int] | None = None) -> Tensor:
    """Words int32 of a matrix of codes uint8, each of 32 / bits codes along `dim`: what
    `penstock.quant.words.unpacked` reads."""
    fields = 32 // bits
    parts = codes.unflatten(dim, (-1, fields)).int()
    words = torch.zeros_like(parts.select(dim + 1, 0))
    for field in range(fields):
        words |= parts.select(dim + 1, field if order is None else order[field]) << field * bits
    return words.contiguous()

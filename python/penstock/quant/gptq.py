"""GPTQ checkpoints (arXiv:2210.17323), of AutoGPTQ and GPTQModel, and of Marlin's first layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from penstock_kernels.packed_linear import Kind

from penstock.quant.calibration import AUTO_ROUND, GPTQ, skip_calibration
from penstock.quant.gptq_rules import Rule, RuledMethods, read_rules
from penstock.quant.groups import Grouping, sorted_by_group
from penstock.quant.marlin import Marlin, marlin_methods
from penstock.quant.method import LinearMethod, Weights, WeightTensor
from penstock.quant.methods import HEAD, Methods
from penstock.quant.packed import Packed, Quantized
from penstock.quant.settings import Settings
from penstock.quant.unquantized import Plain
from penstock.quant.words import check_packing, unpacked


@dataclass(frozen=True)
class GptqLayout:
    """How a checkpoint stores codes of `bits` bits."""

    bits: int
    grouping: Grouping
    less_one: bool
    """Whether zero points are stored minus 1 (checkpoint_format gptq, not gptq_v2)."""
    indexed: bool = True
    """Whether there is a g_idx."""
    symmetric: bool = False
    """Whether all zero points are the middle of the codes."""


class Gptq(Packed):
    """Words of codes along the inputs, and of zero points along the outputs."""

    def __init__(self, plain: Plain, layout: GptqLayout) -> None:
        super().__init__(Kind.INT4 if layout.bits == 4 else Kind.INT8, plain)
        self.layout = layout

    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        """qweight [inputs / codes of a word, outputs], qzeros, scales, and a g_idx if stored."""
        return self.allocate_share(outputs, inputs, 1)

    def allocate_share(self, outputs: int, inputs: int, ranks: int) -> dict[str, WeightTensor]:
        """Likewise, of inputs that ranks share."""
        device, layout, grouping = self.plain.device, self.layout, self.layout.grouping
        pack = 32 // layout.bits
        check_packing(pack, outputs=outputs, inputs=inputs)
        groups = grouping.of(inputs, ranks)

        def words(rows: int, columns: int) -> torch.Tensor:
            return torch.empty((rows, columns), dtype=torch.int32, device=device)

        scales = torch.empty((groups.count, outputs), dtype=torch.float32, device=device)
        zeros = words(groups.count, outputs // pack)
        found = {
            "qweight": WeightTensor(words(inputs // pack, outputs), 1, 0),
            "qzeros": groups.tensor(zeros, 1),
            "scales": groups.tensor(scales, 1),
        }
        if layout.symmetric:
            found["qzeros"] = groups.middle_zeros(zeros, layout.bits, layout.less_one)
        return {**found, "g_idx": grouping.index(inputs, device)} if layout.indexed else found

    def read(self, weights: Weights) -> Quantized:
        """Unpacks codes and zero points."""
        bits, zeros = self.layout.bits, weights["qzeros"]
        if self.layout.less_one:
            # To all codes of a word in one addition: a zero point of 0 was stored as a borrow.
            zeros = zeros + sum(1 << place for place in range(0, 32, bits))
        codes = unpacked(weights["qweight"], bits, 0).t()
        found = quantized(codes, weights["scales"], unpacked(zeros, bits, 1), self.kind)
        if not (self.layout.grouping.any_order and self.layout.grouping.size):
            return found
        return sorted_by_group(found, weights["g_idx"].long(), self.kind)


def quantized(
    codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, kind: Kind
) -> Quantized:
    """A matrix whose zero points are dropped if all are the kind's own."""
    own = bool((zeros == kind.zero).all())
    return Quantized(codes, scales, None if own else zeros.float())


def read_gptq(config: Mapping[str, Any], plain: Plain) -> Methods:
    """quant_method "gptq"."""
    settings = Settings(config)
    skip_calibration(settings, "gptq")
    marlin = settings.choice("is_marlin_format", (True, False), False)
    formats = ("gptq", "gptq_v2", "marlin")
    form = settings.choice("checkpoint_format", formats, "marlin" if marlin else "gptq")
    form = settings.choice("format", formats, form)
    head = settings.choice("lm_head", (True, False), False)
    layout, rules = _layout(settings, form), read_rules(settings)
    settings.done()
    if form == "marlin":
        if rules:
            raise settings.error("dynamic and modules_in_block_to_quantize need another format")
        return marlin_methods(settings, Marlin(plain, layout.grouping), layout.bits, head)
    kept = () if head else HEAD
    methods = tuple((rule.pattern, _method(rule, config, form, plain)) for rule in rules)
    return RuledMethods(plain, Gptq(plain, layout), kept, rules=methods)


def _layout(settings: Settings, form: str) -> GptqLayout:
    bits = settings.choice("bits", (4, 8))
    any_order = settings.choice("desc_act", (True, False), False)
    grouping = Grouping.read(settings, "group_size", any_order)
    symmetric = settings.choice("sym", (True, False), True)
    return GptqLayout(bits, grouping, less_one=form == "gptq", symmetric=symmetric)


def _method(rule: Rule, config: Mapping[str, Any], form: str, plain: Plain) -> LinearMethod:
    """The method of a rule's modules; fields that it does not set are quantization_config's."""
    if rule.settings is None:
        return plain
    where = f"quantization_config.dynamic.{rule.pattern.pattern}"
    own = Settings(rule.settings, where)
    own.skip("bits", "group_size", "desc_act", "sym", *GPTQ, *AUTO_ROUND)
    own.done()
    return Gptq(plain, _layout(Settings({**config, **rule.settings}, where), form))

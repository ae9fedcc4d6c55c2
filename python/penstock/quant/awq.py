"""AWQ checkpoints (arXiv:2306.00978) in the gemm layout: int4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from penstock_kernels.packed_linear import Kind

from penstock.quant.calibration import skip_calibration
from penstock.quant.gptq import quantized
from penstock.quant.groups import Grouping
from penstock.quant.method import Weights, WeightTensor
from penstock.quant.methods import HEAD, Methods, kept_modules
from penstock.quant.packed import Packed, Quantized
from penstock.quant.settings import Settings
from penstock.quant.unquantized import Plain
from penstock.quant.words import check_packing, unpacked

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of the outputs in a word, from its lowest bits on
PACK = len(ORDER)


class Awq(Packed):
    """Words of codes, and of zero points, along the outputs."""

    def __init__(self, plain: Plain, grouping: Grouping, symmetric: bool = False) -> None:
        """`symmetric`: all zero points are the middle of the codes."""
        super().__init__(Kind.INT4, plain)
        self.grouping = grouping
        self.symmetric = symmetric

    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        """qweight [inputs, outputs / 8], qzeros [groups, outputs / 8], scales [groups, outputs]."""
        device = self.plain.device
        check_packing(PACK, outputs=outputs)
        groups = self.grouping.of(inputs, 1)

        def words(rows: int) -> torch.Tensor:
            return torch.empty((rows, outputs // PACK), dtype=torch.int32, device=device)

        zeros = words(groups.count)
        scales = torch.empty((groups.count, outputs), dtype=torch.float32, device=device)
        return {
            "qweight": WeightTensor(words(inputs), 1, 0),
            "qzeros": groups.middle_zeros(zeros, 4) if self.symmetric else groups.tensor(zeros, 1),
            "scales": groups.tensor(scales, 1),
        }

    def read(self, weights: Weights) -> Quantized:
        """Unpacks codes and zero points."""
        codes = unpacked(weights["qweight"], 4, 1, ORDER).t()
        return quantized(
            codes, weights["scales"], unpacked(weights["qzeros"], 4, 1, ORDER), self.kind
        )


def read_awq(config: Mapping[str, Any], plain: Plain) -> Methods:
    """quant_method "awq", under the names of transformers and of AutoAWQ."""
    settings = Settings(config)
    # Kernels and fusions of other libraries. `sym` is what transformers' class has in common with
    # GPTQ's: `zero_point` decides.
    settings.skip("do_fuse", "modules_to_fuse", "fuse_max_seq_len", "modules_to_not_convert", "sym")
    skip_calibration(settings, "awq")
    for name in ("version", "format", "checkpoint_format"):
        settings.choice(name, ("gemm", "GEMM"), "gemm")
    for name in ("bits", "w_bit"):
        settings.choice(name, (4,), 4)
    zero_points = settings.choice("zero_point", (True, False), True)
    name = "group_size" if settings.get("q_group_size") is None else "q_group_size"
    grouping = Grouping.read(settings, name)
    settings.done()
    method = Awq(plain, grouping, not zero_points)
    return Methods(plain, method, HEAD, not_converted=kept_modules(config))

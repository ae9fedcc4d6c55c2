"""The weights of a layer's experts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from ..packed_linear.plan import DEPTH, RING_BYTES, TILE, scales_of_turn
from ..packed_linear.weight import PackedWeight
from .plan import HOPPER_ROWS, STAGES_OF_CODES

LIMIT = 7.0  # of gate and up, in gpt-oss
SILU_LIMIT = 10.0  # of gate and up, in Hunyuan 4
CAP = 7.0  # of the activated gate and of up, in Step 3.5
GATE_CAP, UP_CAP = 4.0, 25.0  # of gate and up, in Inkling 2

Matrices = Tensor | PackedWeight
"""[E, outputs, inputs], or codes with a leading dimension of experts: words, scales and zeros."""


class Activation(Enum):
    """How gate and up become one number, or what becomes of an up without a gate."""

    SILU = "silu"
    """gate / (1 + exp(-gate)) * up."""
    GELU_TANH = "gelu_tanh"
    """GELU's tanh approximation of gate, times up."""
    CLAMPED_SWIGLU = "clamped_swiglu"
    """gate * sigmoid(1.702 gate) * (up + 1); gate at most 7, up from -7 to 7. gpt-oss."""
    LIMITED_SILU = "limited_silu"
    """As SILU; gate at most 10, up from -10 to 10. Hunyuan 4."""
    CAPPED_SILU = "capped_silu"
    """min(silu(gate), 7) * up; up from -7 to 7. Step 3.5."""
    SOFTCAPPED_SILU = "softcapped_silu"
    """softcap(gate, 4) * sigmoid(gate) * softcap(up, 25), of softcap(x, c) = c tanh(x / c).
    Inkling 2."""
    RELU_SQUARED = "relu_squared"
    """max(up, 0) ** 2; there is no gate."""

    @property
    def gated(self) -> bool:
        """Whether there is a gate."""
        return self is not Activation.RELU_SQUARED

    @property
    def limit(self) -> float:
        """The bound of gate and up, or of the activated gate; 0 = none."""
        limits = {Activation.CLAMPED_SWIGLU: LIMIT, Activation.LIMITED_SILU: SILU_LIMIT}
        return {**limits, Activation.CAPPED_SILU: CAP}.get(self, 0.0)


@dataclass(frozen=True, eq=False)
class Experts:
    """The experts that this rank holds: ids from `first` on."""

    gate_up: Matrices
    """[E, 2 I, hidden]: of each expert, gates first, then ups. Without a gate [E, I, hidden]."""
    down: Matrices
    """[E, hidden, I]."""
    gate_up_bias: Tensor | None = None
    """[E, 2 I] float, or [E, I]."""
    down_bias: Tensor | None = None
    """[E, hidden] float."""
    activation: Activation = Activation.SILU
    first: int = 0
    """Id of the first expert here. Experts of other ids add nothing (expert parallel)."""
    elsewhere: int = 0
    """Experts that are not here: other ranks have them, or they have no matrices."""

    @property
    def count(self) -> int:
        """Experts that are here."""
        return count(self.gate_up)

    @property
    def inner(self) -> int:
        """I: numbers between the two products."""
        return outputs(self.gate_up) // self.sides

    @property
    def sides(self) -> int:
        """Numbers of the first product for each of the second's inputs: 2 with a gate, or 1."""
        return 1 + self.activation.gated


def count(matrices: Matrices) -> int:
    """The number of experts."""
    return len(matrices) if isinstance(matrices, Tensor) else len(matrices.scales)


def outputs(matrices: Matrices) -> int:
    """Rows of each expert's matrix."""
    return matrices.shape[1] if isinstance(matrices, Tensor) else matrices.outputs


def inputs(matrices: Matrices) -> int:
    """Columns of each expert's matrix."""
    return matrices.shape[2] if isinstance(matrices, Tensor) else matrices.inputs


def takes_codes(weight: PackedWeight, dtype: torch.dtype) -> bool:
    """Whether `hopper_many_codes` multiplies such weights, if experts have many rows of x of a
    dtype: codes of 4 bits, whose scales the copy engine takes and the ring has room for."""
    tables = [table for table in (weight.scales, weight.zeros) if table is not None]
    aligned = all(t.is_contiguous() and weight.outputs * t.itemsize % 16 == 0 for t in tables)
    count = scales_of_turn(weight)
    if weight.kind.bits != 4 or not count or not aligned or weight.inputs % 8:
        return False
    scales = count * TILE * sum(table.itemsize for table in tables)
    turn = 2 * (TILE * DEPTH // 2 + scales) + HOPPER_ROWS * DEPTH * 2
    return dtype in (torch.bfloat16, torch.float16) and turn * STAGES_OF_CODES <= RING_BYTES

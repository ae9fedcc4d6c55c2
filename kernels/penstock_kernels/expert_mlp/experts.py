"""The weights of a layer's experts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torch import Tensor

from ..packed_linear.weight import PackedWeight

LIMIT = 7.0  # of gate and up, in gpt-oss
SLOPE = 1.702  # of the sigmoid there

Matrices = Tensor | PackedWeight
"""[E, outputs, inputs], or codes with a leading dimension of experts: words, scales and zeros."""


class Activation(Enum):
    """How gate and up become one number."""

    SILU = "silu"
    """gate / (1 + exp(-gate)) * up."""
    GELU_TANH = "gelu_tanh"
    """GELU's tanh approximation of gate, times up."""
    CLAMPED_SWIGLU = "clamped_swiglu"
    """gate * sigmoid(1.702 gate) * (up + 1); gate at most 7, up from -7 to 7. gpt-oss."""


@dataclass(frozen=True, eq=False)
class Experts:
    """The experts that this rank holds: ids from `first` on."""

    gate_up: Matrices
    """[E, 2 I, hidden]: of each expert, gates first, then ups."""
    down: Matrices
    """[E, hidden, I]."""
    gate_up_bias: Tensor | None = None
    """[E, 2 I] float."""
    down_bias: Tensor | None = None
    """[E, hidden] float."""
    activation: Activation = Activation.SILU
    first: int = 0
    """Id of the first expert here. Experts of other ids add nothing (expert parallel)."""

    @property
    def count(self) -> int:
        """Experts that are here."""
        return count(self.gate_up)

    @property
    def inner(self) -> int:
        """I: numbers between the two products."""
        return outputs(self.gate_up) // 2


def count(matrices: Matrices) -> int:
    """The number of experts."""
    return len(matrices) if isinstance(matrices, Tensor) else len(matrices.scales)


def outputs(matrices: Matrices) -> int:
    """Rows of each expert's matrix."""
    return matrices.shape[1] if isinstance(matrices, Tensor) else matrices.outputs


def inputs(matrices: Matrices) -> int:
    """Columns of each expert's matrix."""
    return matrices.shape[2] if isinstance(matrices, Tensor) else matrices.inputs

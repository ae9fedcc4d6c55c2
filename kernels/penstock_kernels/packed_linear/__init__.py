"""A linear layer whose weights have 4 or 8 bits, and a scale per group of inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import FLOATS, expect, expect_rank, expect_rows
from ..device import divided_up
from ..op import Op
from . import reference
from .weight import BLOCK, LINE, Kind, PackedWeight, matrix_of, pack, unpack

__all__ = [
    "Kind",
    "PackedWeight",
    "expect_packed",
    "expect_product",
    "matrix_of",
    "pack",
    "packed_linear",
    "unpack",
]

_OP = Op("packed_linear", reference.packed_linear)


def packed_linear(
    x: Tensor, weight: PackedWeight, bias: Tensor | None = None, gated: bool = False
) -> Tensor:
    """y = x W^T + b, or silu(x G^T) * (x U^T).

    Args: x [m, k] float32, bfloat16 or float16, rows may be strided; weight, a matrix [n, k]; bias
        [n] float. `weight` is a constant: on CUDA the kernel may read it before the kernel that was
        launched just before it on the stream has ended. Gated, W = [G; U], and no bias.
    Returns: y [m, n], or [m, n / 2] if gated, of x's dtype, new and contiguous.
    Precision: float32 accumulation in an order that does not depend on timing, one rounding. A code
        less its zero point is exact in x's dtype. Up to 64 rows with groups of 64 and more, a
        group's sum is scaled in float32; otherwise weights are rounded to x's dtype. One row on a
        Hopper GPU: sums of all groups are scaled in float32; int4 codes keep an offset (128, or
        1024 in float16) that the sum of x takes off in float32. Gated, gate and up are rounded
        before they are multiplied if there are many rows. More rows with
        FP8 weights of one group: on a GPU that multiplies float8, x is rounded to e4m3, too, with a
        scale per row (see `float8`).
    Bytes moved: n k bits / 8, and n k / group scales, once; m (n + k) elements of x and y. Where
        more rows make it faster the matrix is dequantized first: see `plan`.
    """
    expect_rank("x", x, "m, k")
    expect_rows("x", x)
    expect_product(x, weight, bias, gated)
    return _OP.on(x)(x, weight, bias, gated)


def expect_product(x: Tensor, weight: PackedWeight, bias: Tensor | None, gated: bool) -> None:
    """Raises ValueError unless x [m, k] and a bias fit the weight."""
    expect_packed(weight)
    expect("x", x, (x.shape[0], weight.inputs), FLOATS)
    if bias is not None:
        expect("bias", bias, (weight.outputs,), FLOATS)
    if gated and (bias is not None or weight.outputs % 2):
        raise ValueError(
            f"gated weight has {weight.outputs} outputs; expected as many up as gate rows, no bias"
        )


def expect_packed(weight: PackedWeight) -> None:
    """Raises ValueError unless the tensors of a weight fit together."""
    expect_rank("scales", weight.scales, "inputs / group, outputs")
    groups, outputs = weight.scales.shape
    blocks = divided_up(outputs, BLOCK), divided_up(weight.inputs, BLOCK)
    if weight.kind is Kind.FP8:
        columns = divided_up(weight.inputs, LINE) * LINE
        expect("words", weight.words, (outputs, columns), (torch.uint8,))
    else:
        expect("words", weight.words, (*blocks, weight.kind.bits, LINE), (torch.int32,))
    expect("scales", weight.scales, (groups, outputs), FLOATS)
    if weight.zeros is not None:
        expect("zeros", weight.zeros, (groups, outputs), FLOATS)
    if weight.inputs % groups or (groups > 1 and weight.group % 16):
        raise ValueError(
            f"scales has {groups} groups of {weight.inputs} inputs; expected groups of a multiple "
            "of 16 inputs, or one"
        )

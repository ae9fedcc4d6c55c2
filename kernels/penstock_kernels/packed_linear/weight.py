"""Weights of 4 or 8 bits with a scale per group of inputs, in the layout that the kernels read.

The layout follows the operands of a matrix instruction of 16 rows and 16 columns (m16n8k16 and
wgmma), so that a thread multiplies what it loads: no number passes through shared memory twice. A
word of 32 bits holds what one lane contributes to one instruction (4 bits), or half of it (8 bits).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 64  # outputs and inputs of a block of words
LINE = 128  # words of a row of a block, one warp's; columns of FP8 that are reordered together


class Kind(Enum):
    """What a code means."""

    INT4 = "int4"
    """An unsigned integer from 0 to 15. The zero point is 8 unless the weight has zero points."""
    INT8 = "int8"
    """An unsigned integer from 0 to 255. Likewise, with a zero point of 128."""
    FP8 = "fp8"
    """Float8 e4m3 (OCP 8-bit floating point, 2023): no infinities. Checkpoints hold no NaN."""
    FP4 = "fp4"
    """Float4 e2m1 (OCP microscaling formats, 2023): 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign."""

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 4 if self in (Kind.INT4, Kind.FP4) else 8

    @property
    def integer(self) -> bool:
        """Whether codes are integers, which may have zero points."""
        return self in (Kind.INT4, Kind.INT8)

    @property
    def zero(self) -> int:
        """The zero point of a weight without zero points."""
        return 1 << self.bits - 1 if self.integer else 0

    def values(self, codes: Tensor) -> Tensor:
        """The numbers that codes uint8 stand for, float32 of the same shape; no zero point yet."""
        if self.integer:
            return codes.float()
        wide = codes.int()
        if self is Kind.FP8:  # exponent and fraction to their places in a float32, 120 too low
            return ((wide & 0x7F) << 20 | (wide & 0x80) << 24).view(torch.float32) * 2.0**120
        return ((wide & 7) << 22 | (wide & 8) << 28).view(torch.float32) * 2.0**126


class PackedWeight(NamedTuple):
    """A matrix [outputs, inputs]: (value of the code - zero point) * scale.

    The tensors of a layer's experts have a leading dimension more: `of_expert` is a matrix.
    """

    words: Tensor
    """[ceil(outputs / 64), ceil(inputs / 64), bits, 128] int32, of FP8 [outputs, inputs] uint8 with
    inputs filled up to a multiple of 128, as `pack` makes them."""
    scales: Tensor
    """[inputs / group, outputs] contiguous float: a multiple of 16 inputs of a row share a scale,
    or all of them."""
    zeros: Tensor | None
    """As scales: integers, exact in their dtype. None: `kind.zero`."""
    kind: Kind
    inputs: int

    @property
    def outputs(self) -> int:
        """Rows of the matrix."""
        return self.scales.shape[-1]

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.inputs // self.scales.shape[-2]

    def of_expert(self, index: int) -> PackedWeight:
        """A view of one matrix, of tensors with a leading dimension of experts."""
        zeros = None if self.zeros is None else self.zeros[index]
        return self._replace(words=self.words[index], scales=self.scales[index], zeros=zeros)

    def codes(self) -> Tensor:
        """The codes [outputs, inputs] uint8."""
        return unpack(self.words, self.kind)[: self.outputs, : self.inputs]

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """The matrix [outputs, inputs]: products are of at least float32, then rounded to dtype."""
        return matrix_of(self.codes(), self.scales, self.zeros, self.kind, dtype)


def matrix_of(
    codes: Tensor, scales: Tensor, zeros: Tensor | None, kind: Kind, dtype: torch.dtype
) -> Tensor:
    """The matrix of codes [outputs, inputs] uint8, with scales and zeros as `PackedWeight`'s."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    group = codes.shape[1] // len(scales)

    def per_input(per_group: Tensor) -> Tensor:
        return per_group.t().to(wide).repeat_interleave(group, dim=1)

    zero = float(kind.zero) if zeros is None else per_input(zeros)
    return ((kind.values(codes).to(wide) - zero) * per_input(scales)).to(dtype)


def pack(codes: Tensor, kind: Kind) -> Tensor:
    """Words of codes [outputs, inputs] uint8; both are padded to blocks by the code 0.

    With n = output and k = input within a block of 64 x 64, the line and place of a word and the
    place of the code in it are, from their lowest bit on:

        4 bits: place (k4 k5 k1 k2 n0 n1 n2), line (n4 n5), 4-bit field of the word (n3 k3 k0)
        8 bits: place (k3 k4 k1 k2 n0 n1 n2), line (n4 n5 k5), byte of the word (n3 k0)

    A code of 8-bit integers is stored with its highest bit flipped: as a signed integer.

    FP8 stays a matrix, which torch's products of float8 take, too. Only the order of inputs
    changes, within each 128: see `in_lanes`.
    """
    outputs, inputs = codes.shape
    if kind is Kind.FP8:
        return in_lanes(torch.nn.functional.pad(codes, (0, -inputs % LINE)))
    padding = (0, -inputs % BLOCK, 0, -outputs % BLOCK)
    codes = torch.nn.functional.pad(codes, padding)
    if kind is Kind.INT8:
        codes = codes ^ 0x80
    rows, columns = codes.shape[0] // BLOCK, codes.shape[1] // BLOCK
    #                  n: 45 3 012, k: 5 4 3 12 0
    view = codes.view(rows, 4, 2, 8, columns, 2, 2, 2, 4, 2)
    if kind.bits == 4:  # noqa: SIM108 (side by side with `unpack`)
        order = (0, 4, 1, 3, 8, 5, 6, 9, 7, 2)
    else:
        order = (0, 4, 5, 1, 3, 8, 6, 7, 9, 2)
    fields = view.permute(order).reshape(rows, columns, kind.bits, LINE, 32 // kind.bits)
    words = torch.zeros(fields.shape[:-1], dtype=torch.int32, device=codes.device)
    for at in range(fields.shape[-1]):
        words |= fields[..., at].int() << (at * kind.bits)
    return words


def unpack(words: Tensor, kind: Kind) -> Tensor:
    """The codes of `pack`, with its padding."""
    if kind is Kind.FP8:
        return _reordered(words, (2, 3, 4, 5, 0, 1, 6))
    rows, columns = words.shape[:2]
    shifts = torch.arange(0, 32, kind.bits, dtype=torch.int32, device=words.device)
    fields = (words[..., None] >> shifts & (1 << kind.bits) - 1).to(torch.uint8)
    if kind.bits == 4:  # k5 k4 of the place, k0 k3 n3 of the field
        view, order = (
            fields.view(rows, columns, 4, 8, 4, 2, 2, 2, 2, 2),
            (0, 2, 9, 3, 1, 5, 6, 8, 4, 7),
        )
    else:  # k5 of the line, k4 k3 of the place, k0 n3 of the byte
        view, order = (
            fields.view(rows, columns, 2, 4, 8, 4, 2, 2, 2, 2),
            (0, 3, 9, 4, 1, 2, 6, 7, 5, 8),
        )
    codes = view.permute(order).reshape(rows * BLOCK, columns * BLOCK)
    return codes ^ 0x80 if kind is Kind.INT8 else codes


def in_lanes(matrix: Tensor) -> Tensor:
    """Columns of [rows, a multiple of 128] in the order in which lanes take them.

    Column k of 128 goes to the place with the bits (k0 k3 k4 k5 k6 k1 k2), the lowest first. Then
    16 columns in a row are what one lane contributes to 4 matrix instructions, and lanes that read
    shared memory together, swizzled, use all its banks. The same order of the inputs of both
    operands changes no product.
    """
    return _reordered(matrix, (4, 5, 0, 1, 2, 3, 6))  # of the bits k6 k5 k4 k3 k2 k1 k0


def _reordered(matrix: Tensor, order: tuple[int, ...]) -> Tensor:
    rows, columns = matrix.shape
    view = matrix.view(rows, columns // LINE, *[2] * 7)
    return view.permute(0, 1, *(2 + bit for bit in order)).reshape(rows, columns)

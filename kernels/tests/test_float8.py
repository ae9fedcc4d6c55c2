"""Rows rounded to e4m3 for products of float8, alone and after a norm or a gate.

Run in Triton's interpreter, in a process of its own: see test_interpreter.py.
"""

from __future__ import annotations

import os

import pytest
import torch
from penstock_kernels.act_mul.reference import act_mul
from penstock_kernels.packed_linear import float8
from penstock_kernels.packed_linear.weight import in_lanes
from penstock_kernels.rms_norm import NormInput
from penstock_kernels.rms_norm.reference import rms_norm
from torch import Tensor

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="run by test_interpreter.py"
)
SHAPES = [(3, 200), (2, 1024), (1, 64)]


def expect_rounded(found: float8.Rounded, x: Tensor) -> None:
    """Whether `found` stands for x as well as 4 bits can, and for zeros behind it."""
    filled = torch.nn.functional.pad(x, (0, -x.shape[1] % 128))
    assert found.codes.shape == filled.shape
    # One more code than 448 is NaN, so a scale that is too small shows.
    torch.testing.assert_close(
        found.codes.float() * found.scales, in_lanes(filled).float(), rtol=2**-4, atol=1e-3
    )
    assert (found.codes.float().abs().amax(1) == float8.LARGEST).all()


@pytest.mark.parametrize(("rows", "inputs"), SHAPES)
def test_rows_are_rounded_in_the_order_of_lanes(rows: int, inputs: int) -> None:
    x = torch.randn(rows, inputs + 8, dtype=torch.float16)[:, :inputs]
    expect_rounded(float8.rounded(x), x)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(("rows", "inputs"), SHAPES)
def test_rows_are_normalised_and_rounded(rows: int, inputs: int, first: bool) -> None:
    x, other = torch.randn(2, rows, inputs, dtype=torch.float16)
    scale = torch.randn(inputs, dtype=torch.float16)
    found, total = float8.normed(NormInput(x, None if first else other, scale, 1e-5))
    expected = rms_norm(x if first else x + other, scale, 1e-5)
    assert isinstance(expected, Tensor)
    expect_rounded(found, expected)
    torch.testing.assert_close(total, x if first else x + other)


@pytest.mark.parametrize(("rows", "inputs"), SHAPES)
def test_rows_are_gated_and_rounded(rows: int, inputs: int) -> None:
    x = torch.randn(rows, 2 * inputs, dtype=torch.float16)
    expect_rounded(float8.gated(x), act_mul(x))

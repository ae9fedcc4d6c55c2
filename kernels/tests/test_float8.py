"""Rows rounded to e4m3 for products of float8, alone and after a norm or a gate.

Run in Triton's interpreter, in a process of its own: see test_interpreter.py.
"""

from __future__ import annotations

import os

import pytest
import torch
from penstock_kernels.act_mul.reference import act_mul
from penstock_kernels.expert_mlp.round_rows import rounded
from penstock_kernels.expert_mlp.sort import Tiled
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


@pytest.mark.parametrize("spread", [False, True])
def test_rows_are_rounded_in_blocks_at_the_places_of_their_choices(spread: bool) -> None:
    ids = torch.tensor([[3, 0], [1, 5], [2, 1]], dtype=torch.int32)  # expert 5 is another rank's
    order = torch.tensor([1, 2, 5, 4, 0, -1], dtype=torch.int32)
    places = torch.tensor([4, 0, 1, -1, 3, 2], dtype=torch.int32)
    tiled = Tiled(16, 1, ids.shape[1], order, places, torch.empty(0), None)
    x = torch.randn(3 if spread else 6, 392, dtype=torch.float16)[:, :384]
    found = rounded(x, tiled, spread)
    assert found.codes.shape == (6 + 16, 384) and found.scales.shape == (3, 32)
    source = x[order[:5] // 2] if spread else x[:5]
    values = found.codes[:5].float().unflatten(1, (3, 128)) * found.scales[:, :5].t()[..., None]
    expected = in_lanes(source).float().unflatten(1, (3, 128))
    torch.testing.assert_close(values, expected, rtol=2**-4, atol=1e-3)
    largest = found.codes[:5].float().unflatten(1, (3, 128)).abs().amax(-1)
    assert (largest == float8.LARGEST).all()

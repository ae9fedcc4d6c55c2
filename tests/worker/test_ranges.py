"""--quantize int4-mse, penstock quantize --mse: codes cover the range with the least error."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from checkpoints import checkpoint_maker
from penstock.quant import RoundToNearest, Transposed
from penstock.quant.grid import Grid
from penstock.quant.ranges import NORM, SHARES
from penstock_kernels.packed_linear import Kind
from quantized import error_of_quantizing
from torch import Tensor

GROUP = 32


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))


def rounded(matrix: Tensor, search: bool) -> Tensor:
    plain = Transposed(torch.float32, torch.device("cpu"))
    method = RoundToNearest(Kind.INT4, plain, GROUP, search=search)
    return method.dequantize(method.finish({"weight": matrix.clone()}))


def error(weights: Tensor, values: Tensor) -> Tensor:
    """Of each group [..., GROUP]."""
    return (weights - values).abs().pow(NORM).sum(-1)


def error_of(part: Tensor, low: float, high: float) -> float:
    """Of a group whose 16 codes cover [low, high]."""
    scale = torch.tensor((high - low) / 15, dtype=torch.float32)
    return error_with(part, scale, torch.round(torch.tensor(-low, dtype=torch.float32) / scale))


def error_with(part: Tensor, scale: Tensor, zero: Tensor | int) -> float:
    codes = torch.round(part / scale + zero).clamp(0, 15)
    return float(error(part, (codes - zero) * scale))


def least(part: Tensor) -> float:
    """The least error of a group: by the best share of its higher end, then of its lower."""
    low, high = min(float(part.min()), 0.0), max(float(part.max()), 0.0)
    shares = (1.0, *SHARES)
    top = min(shares, key=lambda share: error_of(part, low, high * share))
    return min(error_of(part, low * share, high * top) for share in shares)


def weights_with_outliers() -> Tensor:
    torch.manual_seed(5)
    weights = torch.randn(24, 2 * GROUP)
    weights[:8, 3] = 9.0
    weights[4:12, 40] = -7.0
    weights[12:16] = weights[12:16].abs()  # all of one sign
    return weights


def test_each_group_has_the_least_error_of_the_tried_ranges() -> None:
    weights = weights_with_outliers()
    groups = weights.view(24, 2, GROUP)
    found = error(groups, rounded(weights, search=True).view(24, 2, GROUP))
    for row, group in product(range(24), range(2)):
        assert float(found[row, group]) == pytest.approx(least(groups[row, group]), rel=1e-3)


def test_no_group_is_worse_than_without_the_search() -> None:
    weights = weights_with_outliers()
    groups = weights.view(24, 2, GROUP)
    with_search, without = (
        error(groups, rounded(weights, search).view(24, 2, GROUP)) for search in (True, False)
    )
    assert (with_search <= without).all()
    assert (with_search < without).float().mean() > 0.5


def test_ranges_without_zero_points_stay_symmetric() -> None:
    weights = weights_with_outliers()
    groups = weights.view(24, 2, GROUP)
    grid = Grid(4, True, torch.float32, search=True)
    of = grid.scales(groups)
    largest = groups.abs().amax(-1)
    shares = torch.tensor((1.0, *SHARES))
    assert (of.zeros == 8).all()
    for row, group in product(range(24), range(2)):
        part, most = groups[row, group], float(largest[row, group])
        least = min(error_with(part, 2 * most * share / 15, 8) for share in shares)
        assert error_with(part, of.scales[row, group], 8) == pytest.approx(least, rel=1e-3)


def test_a_group_of_zeros_stays_zeros() -> None:
    assert not rounded(torch.zeros(4, GROUP), search=True).any()


@pytest.mark.parametrize("case", ["llama2", "qwen3-moe"])
def test_logits_are_nearer_to_those_of_the_floats(
    checkpoint: Callable[[str], Path], case: str
) -> None:
    path = checkpoint(case)
    assert error_of_quantizing(path, "int4-mse") < error_of_quantizing(path, "int4")

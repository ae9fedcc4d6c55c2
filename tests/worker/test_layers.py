"""Layers by themselves."""

from __future__ import annotations

import pytest
import torch
from penstock.quant import Plain, plain

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [1, 40, 300])
@pytest.mark.parametrize("added", [False, True])
def test_what_a_norm_sums(
    device: str, rows: int, added: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product and the residual, or both in the residual's memory, where cuBLAS multiplies."""
    if device == "cpu" or not added:
        monkeypatch.setattr(plain, "adds", lambda *_: added)
    kind = {"device": device, "dtype": torch.bfloat16}
    weight, x = torch.randn(256, 512, **kind), torch.randn(rows, 512, **kind)
    residual = torch.randn(rows, 256, **kind)
    expected = residual.double() + x.double() @ weight.double().t()
    method = Plain(torch.bfloat16, torch.device(device))
    found, left = method.apply_onto({"weight": weight}, x, None, residual)
    assert (left is None) == (added and (device == "cpu" or rows > 256))
    assert (found is residual) == (left is None)
    total = found.double() if left is None else found.double() + left.double()
    torch.testing.assert_close(total, expected, rtol=2**-7, atol=2**-2)

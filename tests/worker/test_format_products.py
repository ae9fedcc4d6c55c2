"""Every weight format where codes are kept: the product is that of the matrix they stand for.

On a CPU by the reference ops, which the worker does not use there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from penstock.config import MlpSpec, NormSpec, ResidualSpec
from penstock.layers import Build, GatedMlp, Residual, RmsNorm
from penstock.parallel import Group
from penstock.quant import (
    FourBit,
    Fp8,
    Fp8Layout,
    Int8,
    LinearMethod,
    Methods,
    MxFp8,
    Unquantized,
    Weights,
)
from penstock.quant.bitsandbytes import StoredFourBit, StoredInt8
from penstock.quant.fp8 import PER_OUTPUT
from penstock.quant.mx import MxFp4, MxNames, NvFp4, NvNames
from penstock.quant.packed import Packed
from penstock_kernels import act_mul
from penstock_kernels.rms_norm import NormInput
from torch import Tensor

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
OUTPUTS, INPUTS = 384, 512
METHODS: dict[str, Callable[[Unquantized], LinearMethod]] = {
    "fp8-output": lambda plain: Fp8(plain, Fp8Layout(PER_OUTPUT)),
    "fp8-block": lambda plain: Fp8(plain, Fp8Layout(None, (128, 128))),
    "fp8-cut-block": lambda plain: Fp8(plain, Fp8Layout(None, (128, 64))),
    "mxfp4": lambda plain: MxFp4(plain, MxNames("codes", "scales")),
    "mxfp8": MxFp8,
    "nvfp4": lambda plain: NvFp4(plain, NvNames("codes", "scale", True)),
    "int8": Int8,
    "stored-int8": StoredInt8,
    "nf4": lambda plain: FourBit(plain, "nf4"),
    "fp4": lambda plain: FourBit(plain, "fp4"),
    "stored-nf4": lambda plain: StoredFourBit(plain, "nf4", nested=True),
}


def finished(
    make: Callable[[Unquantized], Any], device: str, codes: bool = True
) -> tuple[LinearMethod, Weights]:
    """A method, and weights from the same random tensors on any device; kept as codes."""
    place = torch.device(device)
    method = make(Unquantized(torch.bfloat16, place))
    method.on_cpu = not codes
    generator = torch.Generator().manual_seed(3)
    weights = {}
    for name, stored in method.allocate(OUTPUTS, INPUTS).items():
        data = torch.empty_like(stored.data, device="cpu")
        if data.dtype == torch.uint8 and name in ("scales", "weight_scale"):
            data.random_(118, 122, generator=generator)  # of e8m0: 2^-9 to 2^-6
        elif data.dtype in (torch.uint8, torch.int8):
            data.random_(-127 if data.dtype == torch.int8 else 0, 127, generator=generator)
        elif data.dtype == torch.float8_e4m3fn or name in ("weight", "nested_quant_map"):
            data.copy_(torch.randn(data.shape, generator=generator))
        else:
            data.copy_(torch.rand(data.shape, generator=generator) + 0.5)
        weights[name] = data.to(place)
    return method, method.finish(weights)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("rows", [0, 1, 5, 16, 64, 200])
@pytest.mark.parametrize("device", DEVICES)
def test_products(device: str, name: str, rows: int) -> None:
    method, weights = finished(METHODS[name], device)
    assert "codes" in weights or "words" in weights
    matrix = method.dequantize(weights).float()
    x = torch.randn(rows, INPUTS, device=device, dtype=torch.bfloat16)
    bias = torch.randn(OUTPUTS, device=device, dtype=torch.bfloat16)
    found = method.apply(weights, x, bias).float()
    expected = x.float() @ matrix.t() + bias.float()
    size = expected.abs().amax().item() if rows else 1.0
    # Of more rows, float8 weights may be multiplied by float8 activations.
    tolerance = 0.05 if name == "fp8-output" and rows > 64 else 0.01
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * size)


@dataclass
class Scale:
    """Of an RMSNorm."""

    weight: Tensor
    eps: float = 1e-5


@pytest.mark.parametrize("name", ["fp8-output", "fp8-block", "mxfp4", "mxfp8", "nvfp4", "int8"])
@pytest.mark.parametrize("rows", [1, 5, 80])
@pytest.mark.parametrize("codes", [True, False])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("device", DEVICES)
def test_products_of_a_norm(device: str, name: str, rows: int, codes: bool, ordered: bool) -> None:
    method, weights = finished(METHODS[name], device, codes)
    assert isinstance(method, Packed)
    if ordered:
        weights = {**weights, "order": torch.randperm(INPUTS, device=device)}
    x, residual = torch.randn(2, rows, INPUTS, device=device, dtype=torch.bfloat16)
    norm = Scale(torch.rand(INPUTS, device=device, dtype=torch.bfloat16) + 0.5)
    normed, total = NormInput(x, residual, norm.weight, norm.eps).normed()
    for gated in (False, True):
        found, left = method.apply_normed(weights, x, residual, norm, None, gated)
        apart = method.apply_gated(weights, normed) if gated else None
        expected = method.apply(weights, normed, None) if apart is None else apart
        assert torch.equal(left, total)
        size = expected.abs().amax().item()
        torch.testing.assert_close(found, expected, rtol=0, atol=0.02 * size)


@pytest.mark.parametrize("name", ["fp8-output", "fp8-block", "mxfp4", "mxfp8"])
@pytest.mark.parametrize("rows", [1, 80])
@pytest.mark.parametrize("codes", [True, False])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("device", DEVICES)
def test_products_of_a_gate(device: str, name: str, rows: int, codes: bool, ordered: bool) -> None:
    method, weights = finished(METHODS[name], device, codes)
    assert isinstance(method, Packed)
    assert method.gates_inputs(rows) == (codes and name != "mxfp4" and rows > 64)
    if ordered:
        weights = {**weights, "order": torch.randperm(INPUTS, device=device)}
    x = torch.randn(rows, 2 * INPUTS, device=device, dtype=torch.bfloat16)
    bias = torch.randn(OUTPUTS, device=device, dtype=torch.bfloat16)
    found = method.apply_to_gate(weights, x, bias)
    expected = method.apply(weights, act_mul(x), bias)
    size = expected.abs().amax().item()
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02 * size)


@torch.inference_mode()
@pytest.mark.parametrize("device", DEVICES)
def test_a_gate_is_applied_once_by_either_product(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = torch.device(device)
    plain = Unquantized(torch.bfloat16, place)
    method = Fp8(plain, Fp8Layout(PER_OUTPUT))
    method.on_cpu = False
    build = Build(torch.bfloat16, place, Group(), Methods(plain, method))
    stream = ResidualSpec(INPUTS, NormSpec(1e-5))
    norm, mlp = RmsNorm(build, INPUTS, stream.norm), GatedMlp(build, stream, MlpSpec(OUTPUTS))
    for layer in (norm, mlp):
        for target in layer.all_targets().values():
            values = torch.rand(target.destination.shape, device=place) * 0.1 - 0.05
            target.destination.copy_(values.abs() if values.ndim < 2 else values)
    for part in (mlp.gate_up, mlp.down):
        part.finish()
    x = torch.randn(80, INPUTS, device=place, dtype=torch.bfloat16)
    late = mlp(norm, Residual(x, x, False)).x, mlp.product(x)
    monkeypatch.setattr(method, "gates_inputs", lambda _: False)
    for found, expected in zip(
        late, (mlp(norm, Residual(x, x, False)).x, mlp.product(x)), strict=True
    ):
        size = expected.abs().amax().item()
        assert size > 0
        torch.testing.assert_close(found, expected, rtol=0, atol=0.02 * size)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("device", DEVICES)
def test_the_matrix_is_that_of_a_cpu(device: str, name: str) -> None:
    kept, weights = finished(METHODS[name], device)
    plain, others = finished(METHODS[name], "cpu", codes=False)
    found, expected = kept.dequantize(weights).cpu(), plain.dequantize(others)
    # Roundings may differ between devices where two values are equally near.
    close = torch.isclose(found.float(), expected.float(), rtol=1e-2, atol=1e-6)
    assert close.float().mean().item() >= (0.999 if name in ("nf4", "fp4", "int8") else 1)


@pytest.mark.gpu
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("rows", [1, 8, 64, 200])
def test_graphs_hold_products(name: str, rows: int) -> None:
    method, weights = finished(METHODS[name], "cuda")
    x = torch.randn(rows, INPUTS, device="cuda", dtype=torch.bfloat16)
    expected = method.apply(weights, x, None).clone()  # compiles, too
    graph = torch.cuda.CUDAGraph()
    held = x.clone()
    with torch.cuda.graph(graph):
        found = method.apply(weights, held, None)
    held.zero_()
    graph.replay()
    assert found.abs().max() == 0
    held.copy_(x)
    graph.replay()
    torch.testing.assert_close(found, expected, rtol=0.02, atol=1e-3)

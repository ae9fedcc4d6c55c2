"""Layers by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import checkpoint_maker
from local import LocalWorker
from penstock.layers import attention
from penstock.models import fewer_layers
from penstock.quant import Unquantized, unquantized
from penstock.worker.startup.warmup import captured_shapes

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [1, 40, 300])
@pytest.mark.parametrize("added", [False, True])
def test_norm_inputs_sum_product_and_residual(
    device: str, rows: int, added: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product and the residual, or both in the residual's memory, where cuBLAS multiplies."""
    if device == "cpu" or not added:
        monkeypatch.setattr(unquantized, "adds", lambda *_: added)
    # Of its own: a worker of an earlier test may be capturing, with the device's own generator.
    generator = torch.Generator(device)
    kind = {"device": device, "dtype": torch.bfloat16, "generator": generator}
    weight, x = torch.randn(256, 512, **kind), torch.randn(rows, 512, **kind)
    residual = torch.randn(rows, 256, **kind)
    expected = residual.double() + x.double() @ weight.double().t()
    method = Unquantized(torch.bfloat16, torch.device(device))
    found, left = method.apply_onto({"weight": weight}, x, None, residual)
    assert (left is None) == (added and (device == "cpu" or rows > 256))
    assert (found is residual) == (left is None)
    total = found.double() if left is None else found.double() + left.double()
    torch.testing.assert_close(total, expected, rtol=2**-7, atol=2**-2)


@torch.inference_mode()
@pytest.mark.parametrize(("case", "kept"), [("llama31", [1, 2]), ("qwen2-window", [0, 1, 2])])
def test_an_abridged_model_has_a_layer_of_each_kind(
    case: str, kept: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = LocalWorker()
    worker.load(checkpoint_maker(tmp_path)(case))
    runner, attend, layers = worker.runner, attention.attend, list[int]()

    def noted(q: Any, k: Any, v: Any, layer: Any, context: Any) -> Any:
        layers.append(layer.index)
        return attend(q, k, v, layer, context)

    monkeypatch.setattr(attention, "attend", noted)
    shape = captured_shapes(runner.state.limits)[0]
    with fewer_layers(runner.rank_model.model):
        runner.warmup_stages(shape).forward()
    assert layers == kept
    runner.warmup_stages(shape).forward()
    assert layers == [*kept, 0, 1, 2]

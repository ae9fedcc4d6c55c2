"""Layers by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import checkpoint_maker
from local import LocalWorker
from penstock.cache import LayerCache
from penstock.config import AttentionSpec, NormSpec, ResidualSpec
from penstock.layers import Attention, Build, attention
from penstock.layers.attention import Chunks, KvPlaces, StepContext
from penstock.models import fewer_layers
from penstock.parallel import Group
from penstock.quant import Methods, Unquantized, unquantized
from penstock.worker.startup.warmup import captured_shapes
from ranks import Threads

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


@torch.inference_mode()
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("ranks", [1, 2])
def test_sinks_join_the_softmax_of_their_heads(softcap: float, ranks: int) -> None:
    """Against attention in plain torch. Ranks share heads, and with them the sinks."""
    tokens, hidden, heads, dim = 7, 8, 4, 6
    spec = AttentionSpec(heads, heads, dim, 0.5, None, softcap=softcap, sinks=True)
    stream = ResidualSpec(hidden, NormSpec(1e-6))
    generator, width = torch.Generator().manual_seed(3), heads * dim
    kind: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    x = torch.randn(tokens, hidden, **kind)
    shapes = {"qkv.q": (width, hidden), "qkv.k": (width, hidden), "qkv.v": (width, hidden)}
    whole = {f"{n}.weight": torch.randn(shape, **kind) for n, shape in shapes.items()}
    whole |= {"out.weight": torch.randn(hidden, width, **kind)}
    whole |= {"sinks": torch.randn(heads, generator=generator)}

    @torch.inference_mode()
    def work(group: Group) -> torch.Tensor:
        device = torch.device("cpu")
        methods = Methods(Unquantized(torch.float64, device))
        layer = Attention(Build(torch.float64, device, group, methods, 16), stream, spec, 0)
        targets = {n.lstrip("."): target for n, target in layer.all_targets().items()}
        assert targets.keys() == whole.keys()
        for name, target in targets.items():
            target.destination.copy_(whole[name][target.region])
        positions = torch.arange(tokens, dtype=torch.int32)
        ends = torch.tensor([0, tokens], dtype=torch.int32)
        chunks = Chunks(ends[:1], ends, ends[1:], tokens)
        places = KvPlaces(positions[:1, None], positions)
        cache = torch.zeros(1, 2, layer.kv_heads, 16, dim, dtype=torch.float64)
        context = StepContext(positions, [places], [LayerCache(cache)], None, chunks)
        return group.summed(layer.product(x, context))

    q, k, v = ((x @ whole[f"qkv.{p}.weight"].t()).view(-1, heads, dim) for p in "qkv")
    scores = torch.einsum("qhd,khd->hqk", q, k) * 0.5
    scores = softcap * (scores / softcap).tanh() if softcap else scores
    scores += torch.full((tokens, tokens), -torch.inf).triu(1)
    sinks = whole["sinks"].double()[:, None, None].expand(-1, tokens, 1)
    shares = torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
    mixed = torch.einsum("hqk,khd->qhd", shares, v).reshape(tokens, -1)
    for found in Threads(ranks).run(work):
        expected = mixed @ whole["out.weight"].t()
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)

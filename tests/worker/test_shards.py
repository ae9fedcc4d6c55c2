"""Ranks that share layers, as threads of one process, together compute what one rank does."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from penstock.config import MlpSpec, NormSpec, ResidualSpec, Specification
from penstock.faults import BadSetting
from penstock.layers import Build, Embedding, GatedMlp, Head, Layer, Residual, RmsNorm
from penstock.parallel import Group, Share
from penstock.quant import Methods, Unquantized
from ranks import Threads
from torch import Tensor

HIDDEN, INNER, EPS = 8, 12, 1e-3
STREAM = ResidualSpec(HIDDEN, NormSpec(EPS))


class Tiny(Layer):
    """A model without attention."""

    def __init__(self, build: Build, vocab: int, tied: bool) -> None:
        spec = Specification(STREAM, vocab, 1, (), tied)
        self.embed = Embedding(build, spec)
        self.norms = [RmsNorm(build, HIDDEN, STREAM.norm) for _ in range(2)]
        self.mlp = GatedMlp(build, STREAM, MlpSpec(INNER, bias=True))
        self.head = Head(build, spec, self.embed if tied else None)

    def __call__(self, ids: Tensor) -> Tensor:
        first, last = self.norms
        rows = Residual(self.embed(ids), None, self.embed.group.size > 1)
        return self.head(last(self.mlp(first, rows))[0])


def weights(vocab: int, tied: bool) -> dict[str, Tensor]:
    """The whole model's, by the names of its tree."""
    shapes: dict[str, tuple[int, ...]] = {
        "embed.weight": (vocab, HIDDEN),
        "norms.0.weight": (HIDDEN,),
        "norms.1.weight": (HIDDEN,),
        "mlp.gate_up.gate.weight": (INNER, HIDDEN),
        "mlp.gate_up.gate.bias": (INNER,),
        "mlp.gate_up.up.weight": (INNER, HIDDEN),
        "mlp.gate_up.up.bias": (INNER,),
        "mlp.down.weight": (HIDDEN, INNER),
        "mlp.down.bias": (HIDDEN,),
    }
    if not tied:
        shapes["head.weight"] = (vocab, HIDDEN)
    generator = torch.Generator().manual_seed(vocab)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }


def expected(whole: dict[str, Tensor], ids: Tensor) -> Tensor:
    """The same model in plain torch."""

    def norm(x: Tensor, number: int) -> Tensor:
        scale = whole[f"norms.{number}.weight"]
        return x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * scale

    x = whole["embed.weight"][ids]
    inner, parts = norm(x, 0), []
    for part in ("gate", "up"):
        weight, bias = whole[f"mlp.gate_up.{part}.weight"], whole[f"mlp.gate_up.{part}.bias"]
        parts.append(inner @ weight.t() + bias)
    mixed = F.silu(parts[0]) * parts[1]
    x = x + mixed @ whole["mlp.down.weight"].t() + whole["mlp.down.bias"]
    return norm(x, 1) @ whole.get("head.weight", whole["embed.weight"]).t()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("vocab", [13, 12, 5, 1])  # of 5, a fourth rank holds none
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ranks_together_match_a_single_rank(size: int, vocab: int, tied: bool) -> None:
    whole, ids = weights(vocab, tied), torch.arange(vocab, dtype=torch.int32)
    taken = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    lock = threading.Lock()

    @torch.inference_mode()  # which is each thread's own
    def work(group: Group) -> Tensor:
        device = torch.device("cpu")
        method = Unquantized(torch.float64, device)
        model = Tiny(Build(torch.float64, device, group, Methods(method)), vocab, tied)
        targets = model.all_targets()
        assert targets.keys() == whole.keys()
        for name, target in targets.items():
            assert target.shape == whole[name].shape
            target.destination.copy_(whole[name][target.region])
            with lock:
                taken[name][target.region] += 1
        for _, layer in model.walk():
            layer.finish()
            assert not getattr(layer, "stored", {})  # the loaded form is dropped
        return model(ids)

    logits = expected(whole, ids)
    for found in Threads(size).run(work):
        torch.testing.assert_close(found, logits, rtol=1e-12, atol=1e-12)
    for name, times in taken.items():
        shared = "norms" not in name and name != "mlp.down.bias"
        assert times.eq(1 if shared else size).all(), name


@pytest.mark.parametrize(
    ("heads", "size", "found"),
    [
        (8, 2, [Share(0, 2), Share(1, 2)]),
        (2, 2, [Share(0, 2), Share(1, 2)]),
        (2, 4, [Share(0, 2), Share(0, 2), Share(1, 2), Share(1, 2)]),
        (1, 3, [Share(0, 1)] * 3),
    ],
)
def test_ranks_share_kv_heads_or_have_copies(heads: int, size: int, found: list[Share]) -> None:
    assert [Group(rank, size).kv_share(heads) for rank in range(size)] == found


@pytest.mark.parametrize(("heads", "size"), [(3, 2), (2, 3), (8, 12)])
def test_kv_heads_that_ranks_cannot_share_are_refused(heads: int, size: int) -> None:
    rule = f"num_key_value_heads is {heads}, which {size} ranks cannot share"
    with pytest.raises(BadSetting, match=rule):
        Group(0, size).kv_share(heads)


def test_indivisible_sizes_are_named() -> None:
    device, group = torch.device("cpu"), Group(0, 5)
    build = Build(torch.float32, device, group, Methods(Unquantized(torch.float32, device)))
    with pytest.raises(BadSetting, match="the size of gate is 12"):
        GatedMlp(build, STREAM, MlpSpec(INNER))

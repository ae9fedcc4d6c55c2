"""Ranks that share layers, as threads of one process, together compute what one rank does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
import torch.nn.functional as F
from penstock.config import MlpSpec, NormSpec
from penstock.faults import BadSetting
from penstock.layers import Build, Embedding, GatedMlp, Head, Layer, RmsNorm
from penstock.parallel import Group
from penstock.quant import Unquantized
from penstock_kernels.rms_norm import NormInput
from torch import Tensor

T = TypeVar("T")
HIDDEN, INNER, EPS = 8, 12, 1e-3


class Threads:
    """Where the ranks of a group meet."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.parts: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)

    def gather(self, rank: int, part: Tensor) -> list[Tensor]:
        """All ranks' parts, in order."""
        self.parts[rank] = part.clone()
        self.barrier.wait(30)
        found = list(self.parts)
        self.barrier.wait(30)
        return found

    def run(self, work: Callable[[Group], T]) -> list[T]:
        """What `work` returns on each rank."""
        results: list[Any] = [None] * self.size

        def one(rank: int) -> None:
            try:
                results[rank] = work(Rank(rank, self))
            except BaseException:
                self.barrier.abort()
                raise

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


class Rank(Group):
    """A rank whose collectives go through memory of the process."""

    def __init__(self, rank: int, threads: Threads) -> None:
        super().__init__(rank, threads.size)
        self.threads = threads

    def normed(self, norm_input: NormInput) -> tuple[Tensor, Tensor]:
        parts = self.threads.gather(self.rank, norm_input.x)
        return norm_input._replace(x=torch.stack(parts).sum(0)).normed()

    def join_columns(self, x: Tensor) -> Tensor:
        return torch.cat(self.threads.gather(self.rank, x), dim=1)


class Tiny(Layer):
    """A model without attention."""

    def __init__(self, build: Build, vocab: int, tied: bool) -> None:
        self.embed = Embedding(build, vocab, HIDDEN)
        self.norms = [RmsNorm(build, HIDDEN, NormSpec(EPS)) for _ in range(2)]
        self.mlp = GatedMlp(build, HIDDEN, MlpSpec(INNER, bias=True))
        self.head = Head(build, vocab, HIDDEN, self.embed if tied else None)

    def __call__(self, ids: Tensor) -> Tensor:
        first, last = self.norms
        return self.head(last(self.mlp(first, self.embed(ids)))[0])


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
        model = Tiny(Build(torch.float64, device, group, method), vocab, tied)
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


def test_indivisible_sizes_are_named() -> None:
    device, group = torch.device("cpu"), Group(0, 5)
    build = Build(torch.float32, device, group, Unquantized(torch.float32, device))
    with pytest.raises(BadSetting, match="the size of gate is 12"):
        GatedMlp(build, HIDDEN, MlpSpec(INNER))

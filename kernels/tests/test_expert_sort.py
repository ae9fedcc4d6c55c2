"""Choices sorted by expert on the device, and their tiles: run compiled, or by the interpreter."""

from __future__ import annotations

import os

import pytest
import torch
from penstock_kernels.expert_mlp import Experts
from penstock_kernels.expert_mlp.plan import COPIED_CHOICES, most_tiles
from penstock_kernels.route_experts import Routed

# Tokens, choices, experts of a rank, the first of them; few choices, and many.
ROUTINGS = [
    (1, 1, 1, 0),
    (5, 2, 7, 0),
    (16, 2, 40, 3),
    (60, 2, 3, 0),
    (150, 3, 5, 2),
    (700, 4, 130, 90),
    (1030, 4, 13, 2),
]


def check(routing: tuple[int, int, int, int], rows: int, spread: int, device: torch.device) -> None:
    """Compares with torch's stable sort. `spread`: ids are below it."""
    from penstock_kernels.expert_mlp.sort import ordered, sort_choices

    tokens, top_k, count, first = routing
    ids = torch.randint(spread, (tokens, top_k), dtype=torch.int32, device=device)
    experts = Experts(torch.empty(count, 2, 1), torch.empty(count, 1, 1), first=first)
    tiled = sort_choices(rows, Routed(ids, torch.empty(ids.shape)), experts)
    own = ids.flatten().long().cpu() - first
    own = own.where((own >= 0) & (own < count), count)
    order = own.sort(stable=True).indices
    present = int((own < count).sum())
    assert tiled.order[:present].tolist() == order[:present].tolist()
    places = torch.full((own.numel(),), -1).scatter(0, order[:present], torch.arange(present))
    assert tiled.places.tolist() == places.tolist()
    expected, begin = [], 0
    for expert, number in enumerate(own.bincount(minlength=count)[:count].tolist()):
        for at in range(0, number, rows):
            expected.append((expert, begin + at, begin + min(at + rows, number)))
        begin += number
    most = tiled.most
    assert len(expected) == int(tiled.tiles[-1]) <= most == most_tiles(own.numel(), count, rows)
    table = tiled.tiles[:-1].view(3, most)[:, : len(expected)].t().tolist()
    assert [tuple(tile) for tile in table] == expected
    x = torch.randn(tokens, 1100, device=device)[:, :1090]
    again = sort_choices(rows, Routed(ids, torch.empty(ids.shape)), experts, x)
    assert torch.equal(again.tiles, tiled.tiles)
    assert torch.equal(again.order[:present], tiled.order[:present])
    assert (again.x is None) == (ids.numel() > COPIED_CHOICES)
    for found in (ordered(x, again), ordered(x, tiled)):
        assert found.shape == (ids.numel() + rows, 1090)
        assert torch.equal(found[:present].cpu(), x.cpu()[order[:present] // top_k])


@pytest.mark.parametrize("routing", ROUTINGS)
def test_sorted_choices_in_the_interpreter(routing: tuple[int, int, int, int]) -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("run by test_interpreter.py")
    for spread in (1, routing[2] + routing[3] + 2):
        check(routing, 16, spread, torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [16, 128])
@pytest.mark.parametrize("routing", [*ROUTINGS, (3000, 8, 256, 0), (4097, 6, 100, 50)])
def test_sorted_choices_on_the_device(routing: tuple[int, int, int, int], rows: int) -> None:
    for spread in (1, routing[2] + routing[3] + 2):
        check(routing, rows, spread, torch.device("cuda"))

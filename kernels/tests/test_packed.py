"""The layout of packed weights, what the op refuses, and plans of its Hopper kernel."""

from __future__ import annotations

import pytest
import torch
from penstock_kernels.packed_linear import Kind, PackedWeight, pack, packed_linear, unpack
from penstock_kernels.packed_linear.plan import (
    DEPTH,
    RING_BYTES,
    TILE,
    Problem,
    many,
    plan,
    row_plan,
)


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("shape", [(64, 64), (130, 200), (1, 16)])
def test_unpack_is_the_inverse_of_pack(kind: Kind, shape: tuple[int, int]) -> None:
    codes = torch.randint(1 << kind.bits, shape, dtype=torch.uint8)
    words = pack(codes, kind)
    rows = -(-shape[0] // 64) * 64 if kind is not Kind.FP8 else shape[0]
    columns = -(-shape[1] // 128) * 128 if kind is Kind.FP8 else -(-shape[1] // 64) * 64
    assert words.numel() * words.itemsize * 8 == rows * columns * kind.bits
    assert torch.equal(unpack(words, kind)[: shape[0], : shape[1]], codes)


@pytest.mark.parametrize("kind", Kind)
def test_a_lane_holds_its_part_of_a_matrix_instruction(kind: Kind) -> None:
    """The element of output n and input k is where `pack` says, bit by bit."""
    for n, k in ((0, 1), (1, 0), (8, 0), (16, 0), (0, 8), (0, 16), (0, 32), (13, 39), (63, 62)):
        codes = torch.zeros((64, 64), dtype=torch.uint8)
        codes[n, k] = 1
        words = pack(codes, kind) ^ pack(torch.zeros_like(codes), kind)
        if kind is Kind.FP8:
            place = (k & 1) | (k >> 3 & 15) << 1 | (k >> 1 & 3) << 5
            assert words.nonzero().tolist() == [[n, place]]
            continue
        lane = (k >> 1 & 3) | (n & 7) << 2
        if kind.bits == 4:
            line, place, field = (
                n >> 4,
                lane << 2 | k >> 4,
                (k & 1) << 2 | (k >> 3 & 1) << 1 | n >> 3 & 1,
            )
        else:
            line, place = (k >> 5) << 2 | n >> 4, lane << 2 | k >> 3 & 3
            field = (k & 1) << 1 | n >> 3 & 1
        ((_, _, *found),) = words.nonzero().tolist()
        assert found == [line, place]
        assert words[0, 0, line, place].item() & 0xFFFFFFFF == 1 << field * kind.bits


def test_floating_point_codes_mean_what_the_standards_say() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    numbers = codes[(codes & 0x7F) != 0x7F]
    expected = numbers.view(torch.float8_e4m3fn).float()
    assert torch.equal(Kind.FP8.values(numbers), expected)
    eight = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    assert torch.equal(Kind.FP4.values(codes[:16]), torch.cat([eight, -eight]))


def test_wrong_tensors_are_refused() -> None:
    weight = PackedWeight(
        pack(torch.zeros((64, 128), dtype=torch.uint8), Kind.INT4),
        torch.ones(2, 64),
        None,
        Kind.INT4,
        128,
    )
    x = torch.ones(3, 128)
    assert packed_linear(x, weight).shape == (3, 64)
    for change, message in (
        ({"inputs": 192}, r"words has shape .* expected \(1, 3, 4, 128\)"),
        ({"scales": torch.ones(3, 64)}, "scales has 3 groups of 128 inputs"),
        ({"scales": torch.ones(16, 64)}, "groups of a multiple of 16 inputs"),
        ({"zeros": torch.ones(2, 63)}, "zeros has shape"),
        ({"kind": Kind.FP8}, "words has shape"),
    ):
        with pytest.raises(ValueError, match=message):
            packed_linear(x, weight._replace(**change))
    with pytest.raises(ValueError, match="x has shape"):
        packed_linear(x[:, :64], weight)
    with pytest.raises(ValueError, match="no bias"):
        packed_linear(x, weight, torch.ones(64), gated=True)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("gated", [False, True])
def test_plans_fit_and_leave_no_program_without_work(bits: int, gated: bool) -> None:
    for rows in (1, 16, 17, 64) if gated else (1, 16, 17, 64, 65, 128, 256, 257, 1536):
        for outputs, inputs in ((64, 64), (4096, 14336), (14336, 4096), (100, 1216)):
            chosen = plan(Problem(rows, outputs, inputs, gated, bits, 2048), 132)
            words = TILE * DEPTH * bits // 8 + 2048
            turn = chosen.warp_groups * (1 + gated) * words + chosen.rows * DEPTH * 2
            assert chosen.stages >= 2 and chosen.stages * turn <= RING_BYTES
            turns = -(-inputs // DEPTH)
            share = -(-turns // chosen.splits)
            assert (chosen.splits - 1) * share < turns
            assert chosen.rows <= 256


def test_large_tiles_are_for_many_rows_and_where_they_fill_the_gpu() -> None:
    def taken(rows: int, outputs: int, gated: bool = False, bits: int = 4) -> bool:
        return many(Problem(rows, outputs, 4096, gated, bits, 0), 132)

    assert taken(256, 14336, gated=True)
    assert taken(512, 6144)
    assert taken(1024, 4096)
    assert taken(8192, 6144)
    assert taken(160, 14336, gated=True)
    assert not taken(128, 14336, gated=True)
    assert not taken(256, 4096)
    assert not taken(512, 4096)
    assert not taken(1024, 6144), "two tiles take longer than three of half the size"
    assert not taken(1024, 4096, bits=8)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("sums", [0, 1, 2, 8, 16])
def test_plans_for_one_row_cover_the_inputs_and_waste_no_turn(
    bits: int, gated: bool, sums: int
) -> None:
    sizes = (16, 16), (4096, 14336), (14336, 4096), (100, 1216), (8192, 16384), (8192, 28672)
    for outputs, inputs in sizes:
        chosen = row_plan(Problem(1, outputs, inputs, gated, bits, 0), sums, 132)
        step = chosen.warps * DEPTH * chosen.splits
        assert (chosen.turns - 1) * step < inputs <= chosen.turns * step
        assert chosen.turns % chosen.stages == 0
        sides = 2 if gated else 1
        assert chosen.stages == 1 or chosen.stages * sides * 2 * (bits + sums) <= 96

"""The attention references against their formula, and against each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from penstock_kernels import paged_decode_attention, paged_prefill_attention
from penstock_kernels.case import Heads, paged
from penstock_kernels.paged_decode_attention.cases import decode_arguments
from torch import Tensor

HEADS = Heads(query=6, kv=2, size=16, block_tokens=4)
COUNTS, LENGTHS = [7, 3, 1, 0, 1], [7, 13, 1, 6, 9]
CPU = torch.device("cpu")


def arguments(dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    torch.manual_seed(5)
    return {
        "q": torch.randn(sum(COUNTS), HEADS.query, HEADS.size, dtype=dtype),
        **paged(LENGTHS, HEADS, dtype, CPU),
        "query_start": torch.tensor([0, *COUNTS]).cumsum(0).int(),
        "scale": 0.3,
        "max_query": max(COUNTS),
    }


def first_key(position: int, window: int, aligned: bool) -> int:
    """The first key that the query at a position sees, found by looking at each."""
    for key in range(position + 1):
        near = key // window == position // window if aligned else position - key < window
        if near:
            return key
    raise AssertionError


def one_query(
    case: dict[str, Any],
    place: tuple[int, int, int],
    first: int,
    slopes: Tensor | None = None,
    rel_bias: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """The formula for one query, head by head and key by key; `place`: its sequence, its position
    and its row."""
    sequence, position, row = place
    out = torch.empty(HEADS.query, HEADS.size, dtype=torch.float64)
    table = case["block_tables"][int(case["slots"][sequence])]
    for head in range(HEADS.query):
        places = [
            (int(table[j // HEADS.block_tokens]), j % HEADS.block_tokens)
            for j in range(first, position + 1)
        ]
        kv_head = head // (HEADS.query // HEADS.kv)
        keys = torch.stack([case["kv_cache"][block, 0, kv_head, at] for block, at in places])
        values = torch.stack([case["kv_cache"][block, 1, kv_head, at] for block, at in places])
        scores = keys @ case["q"][row, head] * case["scale"]
        if slopes is not None:
            scores -= slopes[head].double() * (position - torch.arange(first, position + 1))
        if rel_bias is not None:
            for key in range(max(first, position + 1 - rel_bias.shape[2]), position + 1):
                scores[key - first] += rel_bias[row, head, position - key]
        if sinks is not None:
            sink = sinks[row, head].expand(1)
            out[head] = torch.cat((scores, sink)).softmax(0)[:-1] @ values
        else:
            out[head] = scores.softmax(0) @ values
    return out


SLOPES = torch.linspace(0.05, 1.5, HEADS.query)
WINDOWS = [(0, False), (1, False), (5, False), (1, True), (5, True), (6, True), (64, True)]


BIASES: list[dict[str, Tensor]] = [
    {},
    {"slopes": SLOPES},
    *(
        {"rel_bias": torch.rand(sum(COUNTS), HEADS.query, extent, dtype=torch.float64)}
        for extent in (1, 4, 20)
    ),
    {"sinks": torch.randn(sum(COUNTS), HEADS.query, dtype=torch.float64)},
]


@pytest.mark.parametrize(("window", "aligned"), WINDOWS)
@pytest.mark.parametrize("bias", BIASES)
def test_prefill_is_the_formula(window: int, aligned: bool, bias: dict[str, Tensor]) -> None:
    case = arguments()
    out = paged_prefill_attention(**case, window=window, aligned=aligned, **bias)
    row = 0
    for sequence, (count, length) in enumerate(zip(COUNTS, LENGTHS, strict=True)):
        for position in range(length - count, length):
            first = first_key(position, window, aligned) if window else 0
            expected = one_query(case, (sequence, position, row), first, **bias)
            torch.testing.assert_close(out[row], expected, rtol=1e-10, atol=1e-12)
            row += 1


@pytest.mark.parametrize(("window", "aligned"), WINDOWS)
@pytest.mark.parametrize("bias", BIASES)
def test_decode_is_the_last_row_of_prefill(
    window: int, aligned: bool, bias: dict[str, Tensor]
) -> None:
    """Without rotation; each sequence's last key and value come to the decode as arguments."""
    case = arguments()
    last = [0, 1, 2, 4]
    rows = case["query_start"][1:][last].long() - 1
    rule: dict[str, Any] = {"window": window, "aligned": aligned, **bias}
    prefill = paged_prefill_attention(**case, **rule)[rows]
    for name in {"rel_bias", "sinks"} & rule.keys():
        rule[name] = rule[name][rows]
    kv_len, slots, cache = case["kv_len"][last], case["slots"][last], case["kv_cache"]
    place, offset = (kv_len - 1).long() // HEADS.block_tokens, (kv_len - 1) % HEADS.block_tokens
    block = case["block_tables"][slots.long(), place]
    newest = cache[block.long(), :, :, offset.long()]
    cache[block.long(), :, :, offset.long()] = torch.nan
    still = torch.tensor([[1.0, 0.0]], dtype=torch.float64).repeat_interleave(HEADS.size // 2, 1)
    decode = paged_decode_attention(
        case["q"][rows],
        *newest.unbind(1),
        still.expand(max(LENGTHS), -1),
        kv_len - 1,
        block * HEADS.block_tokens + offset,
        cache,
        case["block_tables"],
        slots,
        kv_len,
        case["scale"],
        **rule,
    )
    torch.testing.assert_close(decode, prefill, rtol=1e-10, atol=1e-12)
    assert torch.equal(cache[block.long(), :, :, offset.long()], newest)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [0, 500])
def test_decode_on_the_device_depends_on_the_batch_by_rounding_only(window: int) -> None:
    heads = Heads(query=32, kv=8, size=128, block_tokens=16)
    lengths = [9000, 1, 300, 0, 2500, 8193]
    case = decode_arguments(heads, lengths, torch.bfloat16, torch.device("cuda"))
    together = paged_decode_attention(**case, scale=0.09, window=window)
    per_row = ("q", "k", "v", "positions", "slot_mapping", "kv_len")
    for row, length in enumerate(lengths):
        only = slice(row, row + 1)
        slot = case["slots"][only]
        table = case["block_tables"][slot.long(), : length // 16 + 1].contiguous()
        alone = {**case, **{name: case[name][only] for name in per_row}}
        alone.update(block_tables=table, slots=torch.zeros_like(slot))
        out = paged_decode_attention(**alone, scale=0.09, window=window)
        torch.testing.assert_close(out, together[only], rtol=2e-2, atol=2e-3)


@pytest.mark.gpu
def test_what_several_programs_add_up_is_the_same_in_every_run() -> None:
    """The last program sums in a fixed order, and resets its counter to zero."""
    heads, device = Heads(query=32, kv=8, size=128, block_tokens=16), torch.device("cuda")
    decode = decode_arguments(heads, [9000, 3], torch.bfloat16, device)
    counts, lengths = [200, 5], [9000, 7000]
    prefill = {
        "q": torch.randn(sum(counts), heads.query, heads.size, dtype=torch.bfloat16, device=device),
        **paged(lengths, heads, torch.bfloat16, device),
        "query_start": torch.tensor([0, 200, 205], dtype=torch.int32, device=device),
        "max_query": max(counts),
    }
    for run in (
        lambda: paged_decode_attention(**decode, scale=0.09),
        lambda: paged_prefill_attention(**prefill, scale=0.09),
    ):
        first = run()
        assert all(torch.equal(first, run()) for _ in range(20))

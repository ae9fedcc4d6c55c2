"""Decode attention over more splits than are summed at once, launch after launch.

Run in Triton's interpreter, in a process of its own: see test_interpreter.py. What is summed at
once and how long a split is are made small there, so that short sequences have many.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from penstock_kernels.case import Heads
from penstock_kernels.device import arrivals
from penstock_kernels.paged_decode_attention import reference, splits, triton
from penstock_kernels.paged_decode_attention.cases import decode_arguments

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="run by test_interpreter.py"
)
HEADS = Heads(query=2, kv=2, size=16, block_tokens=4)
SPLIT = 4
LENGTHS = [4 * 33 + 2, 4 * 16, 4 * 16 + 1, 3, 0]  # 34, 16, 17, 1 and no split


@pytest.fixture(autouse=True)
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits of few keys, on a device with room for 40 of them at once."""
    monkeypatch.setattr(splits, "SPLIT", SPLIT)
    monkeypatch.setattr(triton, "SPLIT", SPLIT)
    monkeypatch.setattr(splits, "processors", lambda _: 40)


def copied(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() for name, value in arguments.items()}


@pytest.mark.parametrize("window", [0, 70])
def test_more_splits_than_are_summed_at_once(window: int) -> None:
    torch.manual_seed(11)
    case = decode_arguments(HEADS, LENGTHS, torch.float32, torch.device("cpu"), window=window)
    chosen = splits.plan(case["q"], HEADS.kv, case["block_tables"].shape[1] * HEADS.block_tokens)
    assert triton.SUMMED == 16 < 34 <= chosen.splits <= chosen.most
    expected = reference.paged_decode_attention(**copied(case), scale=0.25, window=window)
    counted = arrivals(torch.device("cpu"), splits.PAIRS)
    # Each launch counts from zero, so what the one before it left behind would show.
    for _ in range(2):
        out = triton.paged_decode_attention(**copied(case), scale=0.25, window=window)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
        assert not counted.any()

"""Sums over ranks: the real kernels in Triton's interpreter, a process for each rank."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from penstock_kernels.peer_sum import Plan, joins, memory_bytes, rule, takes
from penstock_kernels.peer_sum.plan import (
    CHANNELS,
    PIECE,
    PIECE_WARPS,
    SLOTS,
    WORD,
    channel_words,
    fitting_warps,
    most_joined,
    most_rows,
    needed_rows,
)

RANKS = Path(__file__).parent / "peer_ranks.py"


@pytest.mark.parametrize(("ranks", "seed"), [(2, 1), (3, 2), (4, 3)])
def test_ranks_agree_on_the_sum(tmp_path: Path, ranks: int, seed: int) -> None:
    """All have the right sums, to the same bits, and leave all inboxes empty."""
    done = subprocess.run(
        [sys.executable, str(RANKS), str(tmp_path), str(ranks), str(seed)],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]


@pytest.mark.parametrize("kind", [torch.float64, torch.int64])
def test_words_that_may_be_empty_are_left_to_others(kind: torch.dtype) -> None:
    """A word that says of itself that it has not come would be waited for, for ever."""
    assert not takes(torch.zeros(1, 8, dtype=kind), 2)
    assert not joins(torch.zeros(1, 8, dtype=kind), 2)
    assert joins(torch.zeros(1, 8), 2)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("row_words", [2, 2048, 4096])
def test_a_launch_fits_its_slots(ranks: int, halves: bool, row_words: int) -> None:
    """As many rows as fit a channel, and not one more."""
    plan = Plan(7, 4, halves)
    span, rest = divmod(most_rows(plan, row_words, ranks), plan.programs)
    assert rest == 0

    def needed(span: int) -> int:
        rows = needed_rows(span, ranks) if halves else (ranks - 1) * span
        return rows * row_words

    assert needed(span) <= channel_words(ranks) < needed(span + 1)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("row_words", [1, 2048, 2049, 32_064])
def test_a_launch_that_joins_fits_its_slots(ranks: int, row_words: int) -> None:
    rows = most_joined(row_words, ranks)
    pieces = rows * -(-row_words // PIECE)
    assert rows > 0
    assert (ranks - 1) * -(-pieces // CHANNELS) * PIECE <= channel_words(ranks)


def test_memory_is_what_is_said() -> None:
    assert memory_bytes(2) == 32 << 20 == SLOTS * CHANNELS * channel_words(2) * WORD
    assert memory_bytes(8) == 64 << 20


@pytest.mark.parametrize("words", [1, 3, 250, 1024, 2048, 4096])
def test_warps_do_not_share_words(words: int) -> None:
    """One of them could see a word that another has emptied, or not see it yet."""
    for ranks, rows in itertools.product((2, 4, 8), (1, 128, 129, 8192)):
        warps = fitting_warps(rule(rows, words * WORD, ranks), words)
        assert warps == 1 or warps * 32 * 4 < 2 * words
    assert PIECE_WARPS * 32 * 4 <= PIECE


def test_what_it_takes() -> None:
    assert takes(torch.empty(8192, 8192, dtype=torch.bfloat16, device="meta"), 8)
    assert not takes(torch.empty(1, 33, dtype=torch.bfloat16, device="meta"), 2)  # half a word
    assert not takes(torch.empty(1, 32, dtype=torch.float64, device="meta"), 2)
    assert not takes(torch.empty(1, 1 << 20, dtype=torch.bfloat16, device="meta"), 2)

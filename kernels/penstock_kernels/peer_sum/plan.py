"""How ranks share the work of a sum, and how much memory that takes: one table, one rule.

A launch has some programs; program i of every rank works on the same rows, by a channel of its own
that knows nothing of other programs. Ranks must choose alike, so nothing here depends on a device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from ..device import divided_up, power_of_two

CHANNELS = 256
EMPTY = -1  # a word of an inbox that waits: a NaN, or two, that no arithmetic makes
SLOTS = 2  # of a channel, used in turns: see `triton` for why two are enough
ROW_BYTES = 64 << 10  # of a channel's rows of one launch
WORD = 4  # bytes that travel together, and say by themselves whether they are there
PIECE = 2048  # words of a row that a program joins at once, and its warps
PIECE_WARPS = 8


@dataclass(frozen=True)
class Peers:
    """What a rank knows of the memory that all of them share."""

    rank: int
    """This one's place."""
    ranks: int
    """All of them."""
    addresses: Tensor
    """[ranks] int64: where this rank reaches each one's inboxes, its own too; 16 bytes aligned."""
    turns: Tensor
    """[CHANNELS] int32: which slot each channel's next launch uses, 0 at first."""


@dataclass(frozen=True)
class Plan:
    """One launch's shape."""

    programs: int
    """Most programs, of one row or several each."""
    warps: int
    """Of a program, fewer where rows are short."""
    two_shot: bool
    """Whether each row is summed by one rank, which sends the sum to the others; else every rank
    sends its part to every other, and all of them sum."""


# Two ranks send the same bytes either way. Best or nearly so for 1 to 8,192 rows of 8 KiB on two
# H200s (`bench/collectives.py --variants`).
PAIR = Plan(programs=256, warps=8, two_shot=False)
# More ranks: bytes that a rank sends up to which parts go to everyone. By arithmetic, not measured.
ONE_SHOT_BYTES = 1 << 20


def rule(rows: int, row_bytes: int, ranks: int) -> Plan:
    """The plan for [rows, row_bytes]."""
    sent = (ranks - 1) * rows * row_bytes
    return replace(PAIR, two_shot=ranks > 2 and sent > ONE_SHOT_BYTES)


def fitting_warps(plan: Plan, row_words: int) -> int:
    """A plan's warps, or as many as have 16 bytes of a row for each thread.

    With more, several warps would read the same word, and some of them too early.
    """
    return min(plan.warps, max(power_of_two(row_words) // 128, 1))


def channel_words(ranks: int) -> int:
    """Words of a slot of a channel: what the others send of its rows."""
    return (1 if ranks == 2 else 2) * ROW_BYTES // WORD


def memory_bytes(ranks: int) -> int:
    """What each rank gives: 32 MiB, or 64 MiB if they are more than two."""
    return SLOTS * CHANNELS * channel_words(ranks) * WORD


def most_rows(plan: Plan, row_words: int, ranks: int) -> int:
    """Rows that one launch can sum; 0 if not even one a program."""
    room = channel_words(ranks) // row_words
    span = room // (ranks - 1)
    if plan.two_shot:
        span = max((s for s in range(room) if needed_rows(s, ranks) <= room), default=0)
    return span * min(plan.programs, CHANNELS)


def most_joined(row_words: int, ranks: int) -> int:
    """Rows that one launch can join; 0 if not even one."""
    span = channel_words(ranks) // PIECE // (ranks - 1)
    return span * CHANNELS // divided_up(row_words, PIECE)


def needed_rows(span: int, ranks: int) -> int:
    """Rows that a slot must hold where each of a program's `span` rows is summed by one rank."""
    return (ranks - 1) * divided_up(span, ranks) + span

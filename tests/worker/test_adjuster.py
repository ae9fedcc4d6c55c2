"""The rows of the device's tables that say what each slot asks of its logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from penstock.worker.adjust import Adjuster
from penstock.worker.adjustment import MOST_BAD_WORDS, WORD_TOKENS
from penstock.worker.shape import Shape, layout, tensors
from penstock.worker.state import Limits
from penstock.worker.step import Adjustment, NewSequence, Sampling, Watermark
from penstock_kernels.adjust import GENERATED, PROMPT, Number, Word
from penstock_kernels.bad_words import ANY

VOCAB, SLOTS = 70, 3
LIMITS = Limits(SLOTS, 16, 64, 16, 12, VOCAB)
ALL = Adjustment(
    min_p=0.25, typical_p=0.5, repetition=1.5, frequency=0.75, presence=0.125,
    bias=(np.array([9, 3], np.int32), np.array([2.5, -1], np.float32)),
    allowed=np.array([1, 33, 69], np.int32), banned=np.array([33], np.int32),
    bad_words=(np.array([4, 5], np.int32), np.array([6, 7, 8], np.int32)),
    watermark=Watermark(0.25, 1.25, -7),
)  # fmt: skip


def entering(slot: int, asked: Adjustment | None, ids: list[int], generated: int) -> NewSequence:
    known = np.array(ids, np.int32)
    sampling = Sampling(0.0, 0, 1.0, 0, 0, np.zeros(0, np.int64), asked)
    return NewSequence(slot, known, generated, 0, known[:0], sampling)


def made() -> Adjuster:
    return Adjuster(LIMITS, torch.device("cpu"))


def rows(adjuster: Adjuster) -> list[list[Any]]:
    """All tables, slot by slot."""
    tables = (*adjuster.rules, adjuster.kept.t(), adjuster.words, adjuster.recent)
    return [
        [table[slot].tolist() for table in (*tables, adjuster.word_counts)]
        for slot in range(SLOTS + 1)
    ]


def kept(adjuster: Adjuster) -> tuple[list[float], list[float]]:
    """min_p and typical_p of every slot, as they are chosen by."""
    shape = Shape(SLOTS + 1, SLOTS + 1, 0, SLOTS + 1)
    views = tensors(shape, torch.zeros(layout(shape)["end"][0], dtype=torch.int32))
    views["sample_slot"].copy_(torch.arange(SLOTS + 1))
    found = adjuster.rows(views)
    assert found.min_p is not None and found.typical_p is not None
    return found.min_p.tolist(), found.typical_p.tolist()


def test_slots_ask_for_nothing_at_first() -> None:
    adjuster = made()
    assert kept(adjuster) == ([0] * 4, [1] * 4)
    assert adjuster.rules.numbers[:, Number.REPETITION].tolist() == [1] * 4
    assert adjuster.rules.numbers.sum() == 4 and adjuster.rules.words.eq(0).all()
    assert adjuster.rules.counts.eq(0).all() and adjuster.word_counts.eq(0).all()
    shapes = {name: tuple(table.shape) for name, table in adjuster.rules._asdict().items()}
    assert shapes["counts"] == (4, VOCAB) and shapes["allowed"] == (4, 3)


def test_all_that_a_sequence_asks() -> None:
    adjuster, before = made(), rows(made())
    adjuster.enter(entering(1, ALL, [2, 2, 3, 5, 5, 5, 6], generated=4))
    rules = adjuster.rules
    numbers = {Number.REPETITION: 1.5, Number.FREQUENCY: 0.75, Number.PRESENCE: 0.125}
    assert rules.numbers[1].tolist() == [{**numbers, Number.DELTA: 1.25}[n] for n in Number]
    words = {Word.BIASES: 2, Word.RESTRICTED: 1, Word.GREEN: 1 << 30, Word.KEY: -7}
    assert rules.words[1].tolist() == [words[w] for w in Word]
    assert rules.bias_ids[1, :3].tolist() == [9, 3, 0]
    assert rules.bias_values[1, :3].tolist() == [2.5, -1, 0]
    bits = [word >> bit & 1 for word in rules.allowed[1].tolist() for bit in range(32)]
    assert [at for at, bit in enumerate(bits) if bit] == [1, 69]
    counts = {2: PROMPT, 3: PROMPT, 5: 3, 6: 1}
    assert rules.counts[1].tolist() == [counts.get(token, 0) for token in range(VOCAB)]
    assert kept(adjuster) == ([0, 0.25, 0, 0], [1, 0.5, 1, 1])
    assert adjuster.word_counts.flatten().tolist() == [0, 2, 0, 0]
    listed = adjuster.words[1].view(MOST_BAD_WORDS, WORD_TOKENS)[:2].tolist()
    assert listed == [[ANY] * 14 + [4, 5], [ANY] * 13 + [6, 7, 8]]
    assert adjuster.recent[1].tolist() == [ANY] * 8 + [2, 2, 3, 5, 5, 5]
    after = rows(adjuster)
    assert [after[n] == before[n] for n in range(4)] == [True, False, True, True]
    # Who has the slot next asks for nothing.
    adjuster.enter(entering(1, None, [1], 0))
    assert rules.words[1, Word.BIASES] == rules.words[1, Word.RESTRICTED] == 0
    assert rules.numbers[1].tolist() == before[1][1] and kept(adjuster) == ([0] * 4, [1] * 4)
    assert adjuster.word_counts.eq(0).all()


def test_a_prompt_that_is_long_leaves_its_last_tokens_for_words() -> None:
    adjuster = made()
    asked = Adjustment(bad_words=(np.array([4, 5], np.int32),))
    adjuster.enter(entering(0, asked, list(range(30)), 0))
    assert adjuster.recent[0].tolist() == list(range(15, 29))  # before the last


def test_a_fork_asks_what_its_source_does() -> None:
    adjuster = made()
    adjuster.enter(entering(2, ALL, [1, 2, 3], 1))
    adjuster.fork(2, 0)
    found = rows(adjuster)
    assert found[0] == found[2] and found[1] == found[3] == rows(made())[1]


@pytest.mark.parametrize("counts", [True, False])
def test_tokens_are_counted_up_to_what_a_count_holds(counts: bool) -> None:
    adjuster = made()
    asked = replace(ALL, repetition=1.0, frequency=float(counts), presence=0.0)
    adjuster.enter(entering(1, asked, [7] + [5] * (GENERATED + 9), GENERATED + 9))
    counted = adjuster.rules.counts[1]
    assert (counted[7], counted[5]) == ((PROMPT, GENERATED) if counts else (0, 0))
    slots = torch.tensor([1, 0])
    for _ in range(2):
        adjuster._count(slots, torch.tensor([5, VOCAB - 1]))
        adjuster._count(slots, torch.tensor([7, 1 << 40]))  # as while kernels are only compiled
    assert counted[5] == (GENERATED if counts else 2)
    assert counted[7] == (PROMPT + 2 if counts else 2)
    assert adjuster.rules.counts[0].tolist() == [0] * (VOCAB - 1) + [4]

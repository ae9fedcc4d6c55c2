"""The rows of the device's tables that say what each slot asks of its logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from penstock.worker.batch.shape import Shape, layout, tensors
from penstock.worker.protocol.settings import KvPool, Limits
from penstock.worker.protocol.step import LogitsProcessors, NewSequence, Sampling, Watermark
from penstock.worker.sampling.limits import MOST_BAD_WORDS, WORD_TOKENS
from penstock.worker.sampling.logits_processors import DeviceLogitsProcessors
from penstock_kernels.bad_words import ANY
from penstock_kernels.process_logits import GENERATED, PROMPT, FloatParam, IntParam

VOCAB, SLOTS = 70, 3
LIMITS = Limits(SLOTS, 16, 64, 16, (KvPool(12),), VOCAB)
ALL = LogitsProcessors(
    min_p=0.25, typical_p=0.5, repetition=1.5, frequency=0.75, presence=0.125,
    bias=(np.array([9, 3], np.int32), np.array([2.5, -1], np.float32)),
    allowed=np.array([1, 33, 69], np.int32), banned=np.array([33], np.int32),
    bad_words=(np.array([4, 5], np.int32), np.array([6, 7, 8], np.int32)),
    watermark=Watermark(0.25, 1.25, -7),
)  # fmt: skip


def entering(
    slot: int, asked: LogitsProcessors | None, ids: list[int], generated: int
) -> NewSequence:
    known = np.array(ids, np.int32)
    sampling = Sampling(0.0, 0, 1.0, 0, 0, np.zeros(0, np.int64), asked)
    return NewSequence(slot, known, generated, 0, {}, sampling)


def made() -> DeviceLogitsProcessors:
    return DeviceLogitsProcessors(LIMITS, torch.device("cpu"))


def rows(logits_processors: DeviceLogitsProcessors) -> list[list[Any]]:
    """All tables, slot by slot."""
    tables = (
        *logits_processors.params,
        logits_processors.min_p_typical_p.t(),
        logits_processors.bad_words,
        logits_processors.recent_tokens,
    )
    return [
        [table[slot].tolist() for table in (*tables, logits_processors.bad_word_counts)]
        for slot in range(SLOTS + 1)
    ]


def kept(logits_processors: DeviceLogitsProcessors) -> tuple[list[float], list[float]]:
    """min_p and typical_p of every slot, as they are chosen by."""
    shape = Shape(SLOTS + 1, SLOTS + 1, 0, SLOTS + 1)
    views = tensors(shape, torch.zeros(layout(shape)["end"][0], dtype=torch.int32))
    views["sample_slot"].copy_(torch.arange(SLOTS + 1))
    found = logits_processors.rows(views)
    assert found.min_p is not None and found.typical_p is not None
    return found.min_p.tolist(), found.typical_p.tolist()


def test_empty_slots_have_neutral_parameters() -> None:
    logits_processors = made()
    assert kept(logits_processors) == ([0] * 4, [1] * 4)
    assert logits_processors.params.floats[:, FloatParam.REPETITION].tolist() == [1] * 4
    assert logits_processors.params.floats.sum() == 4 and logits_processors.params.ints.eq(0).all()
    assert (
        logits_processors.params.counts.eq(0).all()
        and logits_processors.bad_word_counts.eq(0).all()
    )
    shapes = {
        name: tuple(table.shape) for name, table in logits_processors.params._asdict().items()
    }
    assert shapes["counts"] == (4, VOCAB) and shapes["allowed"] == (4, 3)


def test_entering_sequence_sets_all_parameters() -> None:
    logits_processors, before = made(), rows(made())
    logits_processors.enter(entering(1, ALL, [2, 2, 3, 5, 5, 5, 6], generated=4))
    params = logits_processors.params
    numbers = {FloatParam.REPETITION: 1.5, FloatParam.FREQUENCY: 0.75, FloatParam.PRESENCE: 0.125}
    assert params.floats[1].tolist() == [{**numbers, FloatParam.DELTA: 1.25}[n] for n in FloatParam]
    words = {IntParam.BIASES: 2, IntParam.RESTRICTED: 1, IntParam.GREEN: 1 << 30, IntParam.KEY: -7}
    assert params.ints[1].tolist() == [words[w] for w in IntParam]
    assert params.bias_ids[1, :3].tolist() == [9, 3, 0]
    assert params.bias_values[1, :3].tolist() == [2.5, -1, 0]
    bits = [word >> bit & 1 for word in params.allowed[1].tolist() for bit in range(32)]
    assert [at for at, bit in enumerate(bits) if bit] == [1, 69]
    counts = {2: PROMPT, 3: PROMPT, 5: 3, 6: 1}
    assert params.counts[1].tolist() == [counts.get(token, 0) for token in range(VOCAB)]
    assert kept(logits_processors) == ([0, 0.25, 0, 0], [1, 0.5, 1, 1])
    assert logits_processors.bad_word_counts.flatten().tolist() == [0, 2, 0, 0]
    listed = logits_processors.bad_words[1].view(MOST_BAD_WORDS, WORD_TOKENS)[:2].tolist()
    assert listed == [[ANY] * 14 + [4, 5], [ANY] * 13 + [6, 7, 8]]
    assert logits_processors.recent_tokens[1].tolist() == [ANY] * 8 + [2, 2, 3, 5, 5, 5]
    after = rows(logits_processors)
    assert [after[n] == before[n] for n in range(4)] == [True, False, True, True]
    # Who has the slot next asks for nothing.
    logits_processors.enter(entering(1, None, [1], 0))
    assert params.ints[1, IntParam.BIASES] == params.ints[1, IntParam.RESTRICTED] == 0
    assert params.floats[1].tolist() == before[1][1] and kept(logits_processors) == (
        [0] * 4,
        [1] * 4,
    )
    assert logits_processors.bad_word_counts.eq(0).all()


def test_long_prompt_keeps_its_last_tokens_for_bad_words() -> None:
    logits_processors = made()
    asked = LogitsProcessors(bad_words=(np.array([4, 5], np.int32),))
    logits_processors.enter(entering(0, asked, list(range(30)), 0))
    assert logits_processors.recent_tokens[0].tolist() == list(range(15, 29))  # before the last


def test_fork_copies_the_parameters_of_its_source() -> None:
    logits_processors = made()
    logits_processors.enter(entering(2, ALL, [1, 2, 3], 1))
    logits_processors.fork(2, 0)
    found = rows(logits_processors)
    assert found[0] == found[2] and found[1] == found[3] == rows(made())[1]


@pytest.mark.parametrize("counts", [True, False])
def test_token_counts_saturate(counts: bool) -> None:
    logits_processors = made()
    asked = replace(ALL, repetition=1.0, frequency=float(counts), presence=0.0)
    logits_processors.enter(entering(1, asked, [7] + [5] * (GENERATED + 9), GENERATED + 9))
    counted = logits_processors.params.counts[1]
    assert (counted[7], counted[5]) == ((PROMPT, GENERATED) if counts else (0, 0))
    slots = torch.tensor([1, 0])
    for _ in range(2):
        logits_processors._count(slots, torch.tensor([5, VOCAB - 1]))
        logits_processors._count(
            slots, torch.tensor([7, 1 << 40])
        )  # as while kernels are only compiled
    assert counted[5] == (GENERATED if counts else 2)
    assert counted[7] == (PROMPT + 2 if counts else 2)
    assert logits_processors.params.counts[0].tolist() == [0] * (VOCAB - 1) + [4]

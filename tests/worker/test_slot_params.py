"""The sampling parameters of the slots on the device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from penstock.worker.protocol.sampling_params import (
    MOST_BAD_WORDS,
    SLOT_PARAMS,
    WORD_TOKENS,
    SamplingParams,
    Watermark,
)
from penstock.worker.protocol.settings import KvPool, Limits
from penstock.worker.protocol.step import NewSequence
from penstock.worker.sampling import SlotParams, column_length, row_places, row_words
from penstock_kernels.bad_words import ANY
from penstock_kernels.process_logits import GENERATED, PROMPT, FloatParam, IntParam

VOCAB, SLOTS = 70, 3
LIMITS = Limits(SLOTS, 16, 64, 16, (KvPool(12),), VOCAB)
ALL = SamplingParams(
    temperature=0.75, top_k=9, top_p=0.875, min_p=0.25, typical_p=0.5, seed=-12345678901,
    repetition=1.5, frequency=0.75, presence=0.125,
    bias=(np.array([9, 3], np.int32), np.array([2.5, -1], np.float32)),
    allowed=np.array([1, 33, 69], np.int32), banned=np.array([33], np.int32),
    bad_words=(np.array([4, 5], np.int32), np.array([6, 7, 8], np.int32)),
    watermark=Watermark(0.25, 1.25, -7),
)  # fmt: skip


def entering(slot: int, sampling: SamplingParams, ids: list[int], generated: int) -> NewSequence:
    known = np.array(ids, np.int32)
    return NewSequence(slot, known, generated, 0, {}, sampling)


def made() -> SlotParams:
    return SlotParams(LIMITS, torch.device("cpu"))


def enter(params: SlotParams, new: NewSequence) -> None:
    """What a step does as a sequence enters: its row comes with the step, lists beside it."""
    row = np.array([new.sampling.slot_row()], SLOT_PARAMS)
    places = row_places(np.array([new.slot], np.int32), column_length(SLOTS))
    params.numbers[torch.from_numpy(places).long()] = torch.from_numpy(row_words(row))
    params.enter(new)


def rows(params: SlotParams) -> list[list[Any]]:
    """All of every slot."""
    columns = vars(params.columns).values()
    tables = *params.params, params.bad_words, params.recent_tokens, params.bad_word_counts
    return [[table[slot].tolist() for table in (*columns, *tables)] for slot in range(SLOTS + 1)]


def test_empty_slots_have_neutral_parameters() -> None:
    params = made()
    columns = {name: column.tolist() for name, column in vars(params.columns).items()}
    assert columns == {
        "seed": [0] * 4, "top_k": [0] * 4, "temperature": [0] * 4, "top_p": [1] * 4,
        "min_p": [0] * 4, "typical_p": [1] * 4,
    }  # fmt: skip
    assert params.params.floats[:, FloatParam.REPETITION].tolist() == [1] * 4
    assert params.params.floats.sum() == 4 and params.params.ints.eq(0).all()
    assert params.params.counts.eq(0).all() and params.bad_word_counts.eq(0).all()
    shapes = {name: tuple(table.shape) for name, table in params.params._asdict().items()}
    assert shapes["counts"] == (4, VOCAB) and shapes["allowed"] == (4, 3)


def test_columns_are_aligned_for_kernels() -> None:
    params = made()
    start = params.numbers.data_ptr()
    for column in (*vars(params.columns).values(), params.bad_word_counts):
        assert (column.data_ptr() - start) % 16 == 0 and column.is_contiguous()


def test_entering_sequence_sets_all_parameters() -> None:
    slots, before = made(), rows(made())
    enter(slots, entering(1, ALL, [2, 2, 3, 5, 5, 5, 6], generated=4))
    params = slots.params
    found = {name: column[1].item() for name, column in vars(slots.columns).items()}
    assert found == {name: getattr(ALL, name) for name in found}
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
    assert slots.bad_word_counts.tolist() == [0, 2, 0, 0]
    listed = slots.bad_words[1].view(MOST_BAD_WORDS, WORD_TOKENS)[:2].tolist()
    assert listed == [[ANY] * 14 + [4, 5], [ANY] * 13 + [6, 7, 8]]
    assert slots.recent_tokens[1].tolist() == [ANY] * 8 + [2, 2, 3, 5, 5, 5]
    after = rows(slots)
    assert [after[n] == before[n] for n in range(4)] == [True, False, True, True]
    # The next sequence in the slot asks for nothing.
    enter(slots, entering(1, SamplingParams(), [1], 0))
    assert params.ints[1].tolist() == [0] * len(IntParam)
    assert params.floats[1].tolist() == [1, 0, 0, 0]
    assert [column[1].item() for column in vars(slots.columns).values()] == before[1][:6]
    assert slots.bad_word_counts.eq(0).all()


def test_long_prompt_keeps_its_last_tokens_for_bad_words() -> None:
    slots = made()
    asked = SamplingParams(bad_words=(np.array([4, 5], np.int32),))
    enter(slots, entering(0, asked, list(range(30)), 0))
    assert slots.recent_tokens[0].tolist() == list(range(15, 29))  # before the last


def test_fork_copies_the_lists_of_its_source() -> None:
    slots = made()
    enter(slots, entering(2, ALL, [1, 2, 3], 1))
    slots.fork(2, 0)
    lists = slots.params.counts, slots.params.bias_ids, slots.params.bias_values
    for table in (*lists, slots.params.allowed, slots.bad_words, slots.recent_tokens):
        assert torch.equal(table[0], table[2]) and not torch.equal(table[0], table[1])
    found = rows(slots)
    assert found[1] == found[3] == rows(made())[1]


@pytest.mark.parametrize("counts", [True, False])
def test_token_counts_saturate(counts: bool) -> None:
    slots = made()
    asked = replace(ALL, repetition=1.0, frequency=float(counts), presence=0.0)
    enter(slots, entering(1, asked, [7] + [5] * (GENERATED + 9), GENERATED + 9))
    counted = slots.params.counts[1]
    assert (counted[7], counted[5]) == ((PROMPT, GENERATED) if counts else (0, 0))
    chosen = torch.tensor([1, 0])
    for _ in range(2):
        slots._count(chosen, torch.tensor([5, VOCAB - 1]))
        slots._count(chosen, torch.tensor([7, 1 << 40]))  # as while kernels are only compiled
    assert counted[5] == (GENERATED if counts else 2)
    assert counted[7] == (PROMPT + 2 if counts else 2)
    assert slots.params.counts[0].tolist() == [0] * (VOCAB - 1) + [4]

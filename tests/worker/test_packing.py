"""A step's inputs, as they lie in the buffer that goes to the device."""

from __future__ import annotations

import itertools
import random
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from penstock.worker.batch import (
    ALIGNMENT,
    LARGER,
    TOKENS,
    Packed,
    Packer,
    Shape,
    buffer_words,
    fill_padding,
    layout,
    most_samples,
    padded_decodes,
    padded_shape,
    step_sizes,
    tensors,
)
from penstock.worker.protocol.sampling_params import SamplingParams
from penstock.worker.protocol.settings import KvPool, Limits
from penstock.worker.protocol.step import Copies, Fork, NewSequence, Step
from penstock.worker.sampling import ROW_WORDS, column_length, row_places, row_words
from penstock.worker.state import State, Work

SLOTS, BLOCK = 48, 4
POOLS = KvPool(900), KvPool(900, window=9)
LIMITS = Limits(
    slots=SLOTS, step_tokens=400, sequence_tokens=60, block_tokens=BLOCK, pools=POOLS, vocab=100
)  # fmt: skip
SPARE = SLOTS


def ints(values: Any = ()) -> Any:
    return np.array(list(values), np.int32)


def step(number: int, **parts: Any) -> Step:
    nothing: dict[str, Any] = {"new": [], "forks": [], "copies": [], "growth": []}
    for name in Step.__dataclass_fields__.keys() - {"epoch", "step", "received", *nothing}:
        nothing[name] = np.zeros(0, np.int32)
    return Step(epoch=1, step=number, **{**nothing, **parts})


def entering(slot: int, tokens: int, dice: random.Random) -> NewSequence:
    blocks = ints(range(15 * slot, 15 * slot + 15))
    tables = {0: blocks, 1: blocks[::-1]}
    stops = np.array([slot, 7], np.int64) if slot % 3 == 0 else np.zeros(0, np.int64)
    sampling = SamplingParams(
        temperature=dice.choice([0.0, 0.5]), top_k=dice.randrange(9), top_p=0.5 + slot / 100,
        seed=-dice.randrange(1 << 60), min_tokens=2, stop_token_ids=stops,
    )  # fmt: skip
    ids = ints(dice.randrange(100) for _ in range(tokens))
    computed = dice.randrange(tokens)
    return NewSequence(slot, ids, 0, computed, tables, sampling)


def stepped(runs: list[tuple[int, int, bool]]) -> tuple[State, Step, Work]:
    """The third step of sequences: runs are (slot, tokens of a chunk or 0 to decode, to its end).

    A sequence that decodes has run before, so that its last token is known to the device alone."""
    dice, state = random.Random(len(runs)), State(LIMITS)
    new = [entering(slot, 20 + slot % 7, dice) for slot in range(SLOTS)]
    state.fold(step(0, new=new))
    first = [slot for slot, chunk, _ in runs if not chunk]
    rest = [int(state.known[slot] - state.computed[slot]) for slot in first]
    for at, slot in enumerate(first):  # one by one: together they are more than a step's tokens
        state.fold(step(1 + at, run_slots=ints([slot]), run_tokens=ints([rest[at]])))
    counts = []
    for slot, chunk, whole in runs:
        if chunk:
            state.computed[slot] = state.known[slot] - chunk - (not whole)
        counts.append(chunk or 1)
    last = step(1 + len(first), run_slots=ints(r[0] for r in runs), run_tokens=ints(counts))
    return state, last, state.fold(last)


def packed(state: State, last: Step, work: Work, pad: bool) -> tuple[Packed, dict[str, Any]]:
    """The step's fields by name; the buffer is as large as any step needs."""
    buffer = torch.full((buffer_words(LIMITS),), 123456, dtype=torch.int32)
    found = Packer(state, pad).pack(last, work, buffer.numpy())
    assert found.words <= len(buffer)
    views = tensors(found.shape, buffer, 2)
    return found, {name: view.tolist() for name, view in views.items()}


def filled(values: list[Any], length: int, rest: Any) -> list[Any]:
    return values + [rest] * (length - len(values))


def expected(state: State, work: Work, shape: Shape) -> dict[str, Any]:
    """The same, one number at a time."""
    t, d, c, r = shape.tokens, shape.decodes, shape.chunks, shape.samples
    fields: dict[str, list[Any]] = {
        n: [] for n in ("id_slot", "position", "kv_slot0", "kv_slot1", "ids")
    }
    ends, lengths, samples = [], [], []
    for run, (slot, start, count) in enumerate(
        zip(work.slots.tolist(), work.starts.tolist(), work.counts.tolist(), strict=True)
    ):
        for position in range(start, start + count):
            blocks = state.tables.entries[:, slot, position // BLOCK].tolist()
            known = position < state.held[slot]
            fields["id_slot"].append(slot)
            fields["position"].append(position)
            for group, block in enumerate(blocks):
                fields[f"kv_slot{group}"].append(block * BLOCK + position % BLOCK)
            fields["ids"].append(int(state.ids[slot][position]) if known else -1)
        ends.append(len(fields["ids"]))
        lengths.append(start + count)
        if work.yields[run]:
            skipped = d - work.decodes if run >= work.decodes else 0
            place = run + skipped if shape.padded else len(samples)
            samples.append((place, slot, ends[-1] - 1, start + count))
    n = work.decodes
    fields["decode_slot"] = filled(work.slots[:n].tolist(), d, SPARE)
    fields["decode_kv_len"] = filled(lengths[:n], d, 0)
    fields["chunk_slot"] = filled(work.slots[n:].tolist(), c, SPARE)
    fields["chunk_kv_len"] = filled(lengths[n:], c, 0)
    fields["query_start"] = filled([n, *ends[n:]], c + 1, ends[-1]) if c else []
    padding = {"id_slot": SPARE, "position": 0, "kv_slot0": -1, "kv_slot1": -1, "ids": -1}
    for name, rest in padding.items():
        fields[name] = filled(fields[name], t, rest)
    rows: dict[str, list[Any]] = {"sample_slot": [SPARE] * r}
    for name in ("sample_position", "sample_row"):
        rows[name] = [0] * r
    for place, slot, row, position in samples:
        rows["sample_slot"][place], rows["sample_row"][place] = slot, row
        rows["sample_position"][place] = position
    return {**fields, **rows}


DECODES = [(slot, 0, True) for slot in range(40)]
STEPS: dict[str, list[tuple[int, int, bool]]] = {
    "one decode": DECODES[:1],
    "decodes": DECODES[5:10],
    "a prompt": [(3, 9, True)],
    "a part of one": [(3, 9, False)],
    "prompts": [(5, 2, True), (6, 9, False), (7, 3, True)],
    "mixed": [(9, 7, False), *DECODES[30:33], (8, 2, True), *DECODES[:2], (10, 5, True)],
    "many decodes and prompts": [*DECODES[:33], (41, 9, True), (42, 2, False)],
    "more prompts than a few": [(slot, 6, slot % 2 == 0) for slot in range(5)],
}


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_packed_step_has_every_input(name: str, pad: bool) -> None:
    state, last, work = stepped(STEPS[name])
    padded = pad and bool(work.yielding)  # a prompt that yields nothing leaves nothing to choose
    found, fields = packed(state, last, work, pad)
    assert found.shape.padded == padded
    assert fields.keys() == layout(found.shape, 2).keys()
    assert fields.pop("end") == []
    assert fields == expected(state, work, found.shape)
    longest = max((chunk for _, chunk, _ in STEPS[name]), default=1) or 1
    assert found.shape.max_query == (longest if not padded else fields_tokens(found.shape))


def fields_tokens(shape: Shape) -> int:
    return shape.tokens if shape.chunks else 1


def test_packed_step_has_its_writes() -> None:
    """Tables, forks, copies, steered and masked tokens, parameters, in pairs from the end."""
    state, _, _ = stepped(DECODES[:2])
    state.computed[3] = state.known[3] - 2
    last = step(
        state.next_step,
        run_slots=ints([3, 1, 0]),
        run_tokens=ints([2, 1, 1]),
        forks=[Fork(1, 45, {0: ints([7, 8, 9]), 1: ints([3])}, 5)],
        copies=[
            Copies(1, np.array([4, 5]), np.array([6, 7])),
            Copies(0, np.array([8]), np.array([9])),
            Copies(1, np.array([1]), np.array([2])),
        ],
        steered_slots=ints([0]),
        steered_tokens=ints([33]),
    )
    work = state.fold(last)
    for pad in (False, True):
        buffer = np.zeros(buffer_words(LIMITS), np.int32)
        found = Packer(state, pad).pack(last, work, buffer)
        extras, at, lists = found.extras, layout(found.shape, 2)["end"][0], {}
        whole = asdict(extras)
        for group, count in enumerate(whole.pop("copies")):
            whole[f"copies{group}"] = count
        for name in ("writes", "forks", "copies0", "copies1", "steered", "masks", "params"):
            count = whole[name]
            lists[name] = buffer[at : at + 2 * count].reshape(2, count).tolist()
            at += 2 * count
        assert at == found.words
        column, other = 45 * LIMITS.table_blocks, (SLOTS + 1 + 45) * LIMITS.table_blocks
        assert lists["writes"] == [[column, column + 1, column + 2, other], [7, 8, 9, 3]]
        assert lists["forks"] == [[1], [45]] and lists["copies0"] == [[8], [9]]
        assert lists["copies1"] == [[4, 5, 1], [6, 7, 2]]
        assert lists["steered"] == [[0], [33]]
        # Stop tokens of slot 3, whose first token this is, not of slot 0, whose third it is.
        rows = dict(zip(work.slots[work.yields].tolist(), found.samples.tolist(), strict=True))
        assert lists["masks"] == [[rows[3]] * 2, [3, 7]]
        places = row_places(ints([45]), column_length(SLOTS)).ravel().tolist()
        expected_row = state.params[[1]].copy()
        expected_row["seed"] = 5
        assert lists["params"] == [places, row_words(expected_row).ravel().tolist()]


def test_packed_step_without_writes_ends_with_its_inputs() -> None:
    state, last, work = stepped(DECODES[1:3])
    work.masked.clear()
    found, _ = packed(state, last, work, pad=False)
    assert found.words == layout(found.shape, 2)["end"][0]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("shape", [Shape(1, 1, 0, 1), Shape(37, 3, 2, 5), Shape(64, 32, 4, 36)])
def test_packed_inputs_are_contiguous_and_aligned(shape: Shape, groups: int) -> None:
    places = list(layout(shape, groups).values())
    assert places[0][0] == 0
    for (at, length), (following, _) in itertools.pairwise(places):
        assert at % ALIGNMENT == 0 and 0 <= following - at - length < ALIGNMENT
    assert places[-1][1] == 0


@pytest.mark.parametrize(
    "limits",
    [
        LIMITS,
        replace(LIMITS, slots=1024, step_tokens=2048),
        replace(LIMITS, pools=POOLS[:1], slots=1024, step_tokens=2048),
    ],
)
def test_the_largest_step_fits_the_buffer(limits: Limits) -> None:
    """In both forms: as it is, and padded."""
    slots, most = limits.slots, limits.step_tokens
    for decodes in {*range(0, slots + 1, 24), slots - 4}:
        rest = most - decodes
        for chunks, tokens in ((0, 0), (1, rest), (4, rest), (slots - decodes, rest)):
            longest = -(-tokens // max(chunks, 1))
            padded = padded_shape(decodes, chunks, tokens, longest)
            exact = Shape(decodes + tokens, decodes, chunks, decodes + chunks)
            for shape in (exact, padded or exact):
                assert shape.samples <= most_samples(limits)
                groups = len(limits.pools)
                left = buffer_words(limits) - layout(shape, groups)["end"][0]
                # All tables anew, each block copied, each slot forked and steered, all stop tokens
                # masked, all parameters anew.
                tables = groups * slots * limits.table_blocks
                pairs = tables + 900 * groups + 2 * slots + slots * (256 + ROW_WORDS)
                assert left >= 2 * pairs


def test_sizes_of_padded_steps() -> None:
    sizes = {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 64: 64, 65: 80, 128: 128, 129: 160, 256: 256, 257: 320}
    sizes |= {512: 512, 513: 640, 1024: 1024}
    assert {count: padded_decodes(count) for count in sizes} == sizes
    for count, size in sizes.items():
        assert padded_shape(count, 0, 0, 1) == Shape(size, size, 0, size, padded=True)
    for (decodes, chunks, tokens), (t, d) in {
        (0, 1, 16): (16, 0), (0, 1, 17): (32, 0), (0, 4, 2048): (2048, 0), (1, 1, 1): (64, 32),
        (32, 1, 32): (64, 32), (33, 1, 31): (64, 64), (33, 1, 32): (128, 128),
        (256, 1, 1): (384, 256), (1024, 4, 1024): (2048, 1024),
    }.items():  # fmt: skip
        shape = Shape(t, d, 4, d + 4, max_query=t, padded=True)
        assert padded_shape(decodes, chunks, tokens, tokens) == shape


def test_padded_steps_of_many_prompts_have_short_ones() -> None:
    """What attention is launched for, the chunks times the tokens of each, has one bound."""
    for (chunks, tokens, longest), (c, t, most) in {
        (4, 2048, 2045): (4, 2048, 2048), (5, 16, 4): (16, 64, 64),
        (16, 2048, 512): (16, 2048, 512), (17, 600, 128): (64, 768, 128), (64, 64, 1): (64, 64, 64),
    }.items():  # fmt: skip
        shape = Shape(t, 0, c, c, max_query=most, padded=True)
        assert padded_shape(0, chunks, tokens, longest) == shape
    assert padded_shape(33, 17, 67, 8) == Shape(128, 128, 64, 192, max_query=128, padded=True)
    for large in ((0, 1, 2049, 2049), (1025, 1, 1, 1), (0, 5, 1000, 513), (0, 17, 900, 129)):
        assert padded_shape(*large) is None
    assert padded_shape(0, 65, 65, 1) is None


def test_sizes_of_steps_that_suit_a_gpu() -> None:
    assert step_sizes(63) == [] and step_sizes(64) == [64] and step_sizes(127) == [64]
    assert step_sizes(2048) == [size for size in TOKENS if size >= 64]
    assert step_sizes(2048 + LARGER - 1)[-1] == 2048
    assert step_sizes(2048 + 2 * LARGER)[-3:] == [2048, 2048 + LARGER, 2048 + 2 * LARGER]


def test_samples_every_row_needs_one_sample_per_token() -> None:
    assert Shape(3, 3, 0, 3).samples_every_row
    assert not Shape(3, 3, 0, 2).samples_every_row
    assert not Shape(3, 2, 1, 3).samples_every_row


def test_padding_uses_only_the_spare_row() -> None:
    shape = Shape(16, 4, 4, 8, padded=True)
    buffer = torch.full((layout(shape, 2)["end"][0],), 7, dtype=torch.int32)
    views = tensors(shape, buffer, 2)
    fill_padding(views, 9)
    values = {"ids": -1, "kv_slot0": -1, "kv_slot1": -1}
    for name, view in views.items():
        spare = 9 if name.endswith("_slot") else 0
        assert view.eq(values.get(name, spare)).all(), name

"""The last value that a worker takes and the first that it refuses, of every limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from penstock.faults import BadStep
from penstock.worker.protocol.sampling_params import (
    MOST_BAD_WORDS,
    MOST_BIASES,
    MOST_STOP_IDS,
    WORD_TOKENS,
    SamplingParams,
    sampling_error,
)
from penstock.worker.protocol.settings import KvPool, Limits
from penstock.worker.protocol.step import (
    Copies,
    FaultKind,
    Fork,
    Growth,
    NewSequence,
    SlotError,
    Step,
)
from penstock.worker.state import State, Work

POOL = KvPool(10)
LIMITS = Limits(4, step_tokens=20, sequence_tokens=30, block_tokens=4, pools=(POOL,), vocab=50)
SAMPLING = SamplingParams()
TABLE = 8  # blocks of the longest sequence


def error(**fields: Any) -> str | None:
    return sampling_error(SamplingParams(**fields), VOCAB)


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


def step(number: int = 0, **parts: Any) -> Step:
    """A step that does nothing but what is given."""
    arrays = ("finished", "run_slots", "run_tokens", "steered_slots", "steered_tokens")
    nothing: dict[str, Any] = {name: ints() for name in arrays}
    nothing.update(new=[], forks=[], copies=[], growth=[])
    return Step(epoch=1, step=number, **{**nothing, **parts})


def sequence(tokens: int = 5, **fields: Any) -> NewSequence:
    parts: dict[str, Any] = {
        "slot": 0, "token_ids": ints(*range(tokens)), "generated": 0, "computed": 0,
        "tables": {0: ints(0, 1)}, "sampling": SAMPLING, **fields,
    }  # fmt: skip
    return NewSequence(**parts)


def blocks(*numbers: int) -> NewSequence:
    return sequence(tables={0: ints(*numbers)})


def fold(*steps: Step) -> Work:
    """The last one's work, of a new state."""
    state = State(LIMITS)
    return [state.fold(each) for each in steps][-1]


def test_blocks_of_the_longest_sequence() -> None:
    assert LIMITS.table_blocks == TABLE
    assert replace(LIMITS, sequence_tokens=32).table_blocks == TABLE
    assert replace(LIMITS, sequence_tokens=33).table_blocks == TABLE + 1


@pytest.mark.parametrize(
    ("good", "bad", "text"),
    [
        (sequence(1), sequence(0), "a sequence has 0 tokens"),
        (sequence(30), sequence(31), "a sequence has 31 tokens"),
        (sequence(token_ids=ints(49)), sequence(token_ids=ints(50)), "token id 50"),
        (sequence(token_ids=ints(0)), sequence(token_ids=ints(-1, 3)), "outside the vocabulary"),
        (sequence(computed=4), sequence(computed=5), "5 tokens computed"),
        (sequence(generated=5), sequence(generated=6), "6 generated"),
        (
            sequence(),
            sequence(sampling=replace(SAMPLING, banned=ints(50))),
            "banned token id 50 is outside",
        ),
        (blocks(9), blocks(10), "block 10 does not exist"),
        (blocks(0), blocks(-1), "does not exist"),
        (blocks(*[3] * 8), blocks(*[3] * 9), "has 9 blocks"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_sequences_are_refused(good: NewSequence, bad: NewSequence, text: str) -> None:
    assert not fold(step(new=[good])).faults
    (fault,) = fold(step(new=[bad])).faults
    assert fault.slot == 0 and fault.kind is FaultKind.INVALID and text in fault.message


def test_stop_token_ids_are_validated() -> None:
    def faults(ids: list[int]) -> list[str]:
        sampling = replace(SAMPLING, stop_token_ids=np.array(ids, np.int64))
        return [f.message for f in fold(step(new=[sequence(sampling=sampling)])).faults]

    assert not faults([49] * MOST_STOP_IDS)
    assert "257 stop token ids" in faults([49] * (MOST_STOP_IDS + 1))[0]
    assert "stop token id 50" in faults([49, 50])[0]


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("finished", 4), ("copies.sources", 10), ("copies.destinations", 10), ("new", 4),
        ("source", 4), ("destination", 4), ("run_slots", 4), ("growth.blocks", 10),
        ("steered_slots", 4), ("steered_tokens", 50),
    ],
)  # fmt: skip
def test_numbers_of_slots_blocks_and_tokens(name: str, end: int) -> None:
    def parts(value: int) -> dict[str, Any]:
        one = ints(value)
        if name == "new":
            return {"new": [sequence(slot=value)]}
        if name in ("source", "destination"):
            ends = {"source": 0, "destination": 1, name: value}
            return {"forks": [Fork(**ends, tables={0: ints(0)}, seed=0)]}
        run = {"run_slots": ints(0), "run_tokens": ints(1)}
        if name == "growth.blocks":
            return {**run, "growth": [Growth(0, ints(1), one)]}
        if name.startswith("copies"):
            blocks = {"sources": ints(0), "destinations": ints(0), name.split(".")[1]: one}
            return {"copies": [Copies(0, **blocks)]}
        beside: dict[str, dict[str, Any]] = {
            "run_slots": {"run_tokens": ints(1)},
            "steered_slots": {"steered_tokens": ints(0)},
            "steered_tokens": {"steered_slots": ints(0)},
        }  # fmt: skip
        return {name: one, **beside.get(name, {})}

    for value in (0, end - 1):
        fold(step(**parts(value)))
    for value in (-1, end):
        with pytest.raises(BadStep, match=f"holds {value}; they count from 0 to {end - 1}"):
            fold(step(**parts(value)))


def test_malformed_steps_are_refused() -> None:
    entering = [sequence(20, slot=0, tables={0: ints(0, 1, 2, 3, 4)})]
    runs = {"run_slots": ints(0), "run_tokens": ints(20)}
    assert not fold(step(new=entering, **runs)).faults
    wrong: list[tuple[dict[str, Any], str]] = [
        ({**runs, "run_tokens": ints(21)}, "the step runs 21 tokens"),
        ({**runs, "run_tokens": ints(1, 1)}, "run_slots and run_tokens"),
        ({"run_slots": ints(1, 1), "run_tokens": ints(1, 1)}, "names a slot twice"),
        ({**runs, "growth": [Growth(0, ints(1, 0), ints(1))]}, "growth.counts and run_slots"),
        ({**runs, "growth": [Growth(0, ints(1), ints())]}, "growth.blocks is not as long"),
        ({**runs, "growth": [Growth(0, ints(1), ints(1, 2))]}, "growth.blocks is not"),
        ({"growth": [Growth(0, ints(), ints())] * 2}, "growth names a KV group twice"),
        ({"growth": [Growth(1, ints(), ints())]}, "names KV group 1; this worker declared 1"),
        ({"copies": [Copies(2, ints(), ints())]}, "names KV group 2"),
        ({"copies": [Copies(0, ints(1), ints())]}, "copies.sources and copies.destinations"),
        ({"new": [sequence(tables={1: ints()})]}, "names KV group 1"),
        ({"forks": [Fork(0, 1, {3: ints()}, 0)]}, "names KV group 3"),
        ({"steered_slots": ints(0)}, "steered_slots and steered_tokens"),
        ({"number": 1}, "step 1 of epoch 1 came where step 0"),
    ]
    for parts, text in wrong:
        with pytest.raises(BadStep, match=text):
            fold(step(**parts))


def test_run_must_fit_its_tokens_and_blocks() -> None:
    def kinds(tokens: int, count: int, blocks: int, more: int = 0) -> list[FaultKind]:
        entering = [sequence(tokens, tables={0: ints(*range(blocks))})]
        grown = [Growth(0, ints(more), ints(*range(9, 9 - more, -1)))]
        work = fold(step(new=entering, run_slots=ints(0), run_tokens=ints(count), growth=grown))
        assert len(work.slots) == (not work.faults)
        return [fault.kind for fault in work.faults]

    broken = [FaultKind.INTERNAL]
    assert kinds(8, 8, 2) == kinds(8, 1, 2) == []
    assert kinds(8, 0, 2) == kinds(8, 9, 3) == kinds(9, 9, 2) == broken
    assert kinds(9, 9, 2, more=1) == kinds(9, 9, 0, more=3) == []
    assert kinds(17, 17, 4, more=4) == []  # a table of 8
    assert kinds(17, 17, 4, more=5) == broken  # a table of 9: nothing is added


WINDOWED = replace(LIMITS, pools=(POOL, KvPool(5, window=6)))


def test_every_group_has_blocks_for_a_run() -> None:
    run = {"run_slots": ints(0), "run_tokens": ints(4)}

    def faults(*tables: Any, growth: tuple[Growth, ...] = ()) -> list[SlotError]:
        entering = [sequence(12, computed=4, tables=dict(enumerate(tables)))]
        return State(WINDOWED).fold(step(new=entering, growth=[*growth], **run)).faults

    more = Growth(1, ints(1), ints(4))
    assert not faults(ints(1, 2), ints(0, 3))
    assert not faults(ints(1, 2), ints(0), growth=(more,))
    for tables, growth in (
        ((ints(1, 2), ints(0)), ()),
        ((ints(1), ints(0, 3)), ()),
        ((ints(1, 2),), ()),
        ((ints(1), ints(0)), (more,)),
    ):
        (fault,) = faults(*tables, growth=growth)
        assert "its blocks hold" in fault.message


def test_blocks_behind_a_window_may_be_any_number() -> None:
    """Of a window of 6 and blocks of 4: the first is passed by the token at position 9."""
    for computed, block in ((8, -1), (8, 5)):
        tables = {0: ints(1, 2, 3), 1: ints(block, 2, 3)}
        entering = sequence(12, computed=computed, tables=tables)
        (fault,) = State(WINDOWED).fold(step(new=[entering])).faults
        assert "does not exist; the pool has 5" in fault.message
        assert not State(WINDOWED).fold(step(new=[replace(entering, computed=9)])).faults
    state = State(WINDOWED)
    state.fold(step(new=[sequence(12, computed=9, tables={0: ints(1, 2, 3), 1: ints(1, 2, 3)})]))
    fork = Fork(0, 1, {0: ints(1, 2, 3), 1: ints(-1, 2, 3)}, 0)
    assert not state.fold(step(1, forks=[fork])).faults
    whole = Fork(0, 1, {0: ints(-1, 2, 3), 1: ints(1, 2, 3)}, 0)
    assert state.fold(step(2, forks=[whole])).faults


def test_impossible_run_error_explains_why() -> None:
    run = {"run_slots": ints(0), "run_tokens": ints(9)}
    (fault,) = fold(step(new=[sequence(12, computed=2)], **run)).faults
    assert fault.message == (
        "slot 0 cannot run 9 tokens: 2 of 12 tokens are computed and its blocks hold 8"
    )


def test_run_of_an_empty_slot_is_one_fault() -> None:
    work = fold(step(run_slots=ints(2), run_tokens=ints(1)))
    assert [(f.slot, f.message) for f in work.faults] == [(2, "slot 2 holds no sequence")]
    state, bad = State(LIMITS), sequence(0, slot=2)
    (fault,) = state.fold(step(new=[bad], run_slots=ints(2), run_tokens=ints(1))).faults
    assert "a sequence has 0 tokens" in fault.message


def test_fork_of_an_empty_slot_is_one_fault() -> None:
    fork = Fork(source=1, destination=2, tables={0: ints(3)}, seed=0)
    work = fold(step(forks=[fork]))
    (fault,) = work.faults
    assert not work.forks and not work.writes
    assert fault.slot == 2 and "slot 1, to be forked, holds no sequence" in fault.message
    long = Fork(source=0, destination=2, tables={0: ints(*[3] * 9)}, seed=0)
    (fault,) = fold(step(new=[sequence()], forks=[long])).faults
    assert fault.slot == 2 and "has 9 blocks" in fault.message


def bias(count: int) -> tuple[Any, Any]:
    return np.arange(count, dtype=np.int32), np.ones(count, np.float32)


def words(*lengths: int) -> tuple[Any, ...]:
    return tuple(np.zeros(length, np.int32) for length in lengths)


VOCAB = MOST_BIASES + 1
CHANGES: list[tuple[str, list[Any], list[Any], str]] = [
    ("bias", [bias(MOST_BIASES)], [bias(MOST_BIASES + 1)], "1025 logit bias token ids"),
    ("bias", [bias(1)], [(ints(0), ints(1, 2))], "1 tokens and 2 values"),
    ("bias", [(ints(VOCAB - 1), ints(1))], [(ints(VOCAB), ints(1))], "logit bias token id 1025"),
    ("bias", [(ints(0), ints(1))], [(ints(-1), ints(1))], "outside the vocabulary"),
    ("allowed", [ints(0, VOCAB - 1)], [ints(VOCAB)], "allowed token id 1025"),
    ("banned", [ints(0, VOCAB - 1), ints()], [ints(VOCAB)], "banned token id 1025"),
    ("bad_words", [words(*[2] * MOST_BAD_WORDS)], [words(*[2] * 257)], "there are 257 bad words"),
    ("bad_words", [words(2), words(WORD_TOKENS)], [words(1), words(17)], "2 to 16 are possible"),
    ("bad_words", [(ints(0, VOCAB - 1),)], [(ints(1, VOCAB),)], "bad word token id 1025"),
    ("bad_words", [(ints(0, 0),)], [(ints(-1, 3),)], "outside the vocabulary"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "good", "bad", "text"), CHANGES)
def test_lists_of_sampling_parameters_are_validated(
    name: str, good: list[Any], bad: list[Any], text: str
) -> None:
    for value in good:
        assert error(**{name: value}) is None
    for value in bad:
        assert text in str(error(**{name: value}))

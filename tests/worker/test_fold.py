"""The worker's state after random steps, against slots that are kept as plain lists."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from penstock.faults import BadStep
from penstock.worker.protocol.sampling_params import SamplerVariant, SamplingParams
from penstock.worker.protocol.settings import KvPool, Limits
from penstock.worker.protocol.step import Fork, Growth, NewSequence, Step
from penstock.worker.state import State, Work
from test_packing import ints

SLOTS, BLOCK, LONGEST = 6, 4, 24
POOLS = KvPool(60), KvPool(40, window=7)
LIMITS = Limits(SLOTS, 500, LONGEST, BLOCK, POOLS, vocab=100)
ASKED: tuple[dict[str, float], ...] = ({}, {}, {"min_p": 0.5}, {"presence": 1.0})
NEEDS = (
    SamplerVariant.PLAIN,
    SamplerVariant.PLAIN,
    SamplerVariant.FILTERED,
    SamplerVariant.PROCESSED,
)


def arrays(tables: list[list[int]]) -> dict[int, Any]:
    return {group: ints(blocks) for group, blocks in enumerate(tables)}


@dataclass
class Slot:
    """A sequence, by what the router knows of it."""

    ids: list[int | None]  # None: the device alone knows it
    computed: int
    generated: int
    tables: list[list[int]]
    sampling: SamplingParams
    seed: int
    asked: int  # index of ASKED


@dataclass
class Model:
    """What the state should hold."""

    dice: random.Random
    slots: dict[int, Slot] = field(default_factory=dict)
    needs: list[SamplerVariant] = field(default_factory=lambda: [SamplerVariant.PLAIN] * SLOTS)
    writes: list[tuple[int, int, int, list[int]]] = field(default_factory=list)
    params: list[int] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)
    list_forks: list[tuple[int, int]] = field(default_factory=list)

    def tables(self, number: int, tokens: int) -> list[list[int]]:
        """Of a sequence that enters slot `number`, each group's."""
        tables = [
            [self.dice.randrange(pool.blocks) for _ in range(-(-tokens // BLOCK))] for pool in POOLS
        ]
        self.writes += [(group, number, 0, blocks) for group, blocks in enumerate(tables)]
        return tables

    def enter(self, number: int) -> NewSequence:
        dice = self.dice
        ids = [dice.randrange(100) for _ in range(dice.randrange(1, 16))]
        computed, asked = dice.randrange(len(ids)), dice.randrange(4)
        stops = np.array([1, 2] if dice.random() < 0.5 else [], np.int64)
        sampling = SamplingParams(
            temperature=dice.choice([0.0, 0.5]), top_k=dice.randrange(9), top_p=0.25,
            seed=dice.randrange(99), min_tokens=dice.randrange(4), stop_token_ids=stops,
            **ASKED[asked],
        )  # fmt: skip
        generated, tables = dice.randrange(len(ids) + 1), self.tables(number, computed)
        self.slots[number] = Slot(
            list(ids), computed, generated, tables, sampling, sampling.seed, asked
        )
        self.params.append(number)
        if NEEDS[asked] == SamplerVariant.PROCESSED:
            self.entries.append(number)
        self.needs[number] = NEEDS[asked]
        return NewSequence(number, ints(ids), generated, computed, arrays(tables), sampling)

    def fork(self, source: int, number: int) -> Fork:
        slot = self.slots[number] = copy.deepcopy(self.slots[source])
        slot.tables = self.tables(number, len(slot.ids) - 1)
        slot.seed = self.dice.randrange(99)
        self.params.append(number)
        if self.needs[source] == SamplerVariant.PROCESSED:
            self.list_forks.append((source, number))
        self.needs[number] = self.needs[source]
        return Fork(source, number, arrays(slot.tables), slot.seed)

    def steer(self, number: int) -> int:
        token = self.dice.randrange(100)
        if self.slots[number].ids[-1] is not None:
            self.slots[number].ids[-1] = token
        return token

    def run(self, number: int) -> tuple[int, list[list[int]]]:
        """Tokens to run, and the blocks that they need more, of each group."""
        slot = self.slots[number]
        unread = len(slot.ids) - slot.computed
        count = unread if self.dice.random() < 0.6 else self.dice.randrange(1, unread + 1)
        grown = []
        for pool, table in zip(POOLS, slot.tables, strict=True):
            more = -(-(slot.computed + count) // BLOCK) - len(table)
            grown.append([self.dice.randrange(pool.blocks) for _ in range(more)])
        return count, grown

    def grow(self, group: int, number: int, blocks: list[int]) -> None:
        if blocks:
            self.writes.append((group, number, len(self.slots[number].tables[group]), blocks))
        self.slots[number].tables[group] = self.slots[number].tables[group] + blocks

    def check(self, work: Work, runs: list[tuple[int, int]]) -> None:
        """Of runs (slot, tokens), in the order of the step; they are taken in."""
        ordered = [r for r in runs if r[1] == 1] + [r for r in runs if r[1] != 1]
        slots = [self.slots[number] for number, _ in ordered]
        ends = [slot.computed + n for slot, (_, n) in zip(slots, ordered, strict=True)]
        yields = [end == len(slot.ids) for end, slot in zip(ends, slots, strict=True)]
        assert work.slots.tolist() == [number for number, _ in ordered]
        assert work.counts.tolist() == [count for _, count in ordered]
        assert work.starts.tolist() == [slot.computed for slot in slots]
        assert work.yields.tolist() == yields and work.yielding == sum(yields)
        assert work.positions.tolist() == [len(slot.ids) for slot in slots]
        assert work.decodes == sum(count == 1 for _, count in runs)
        result = [n for n, c in runs if self.slots[n].computed + c == len(self.slots[n].ids)]
        assert work.slots[work.yields][work.run_order].tolist() == result
        assert [(run, ids.tolist()) for run, ids in work.masked] == [
            (run, [1, 2])
            for run, slot in enumerate(slots)
            if yields[run]
            and slot.generated < slot.sampling.min_tokens
            and len(slot.sampling.stop_token_ids)
        ]
        needs = [self.needs[n] for (n, _), y in zip(ordered, yields, strict=True) if y]
        assert work.sampler_variant == max(needs, default=SamplerVariant.PLAIN)
        writes = [(w.group, w.slot, w.column, w.blocks.tolist()) for w in work.writes]
        assert writes == self.writes
        assert work.params == self.params
        assert [new.slot for new in work.list_entries] == self.entries
        assert work.list_forks == self.list_forks
        assert not work.faults and not work.constrained and work.logprob_requests is None
        self.writes, self.params, self.entries, self.list_forks = [], [], [], []
        for slot, end, one in zip(slots, ends, yields, strict=True):
            slot.computed = end
            if one:
                slot.ids.append(None)
                slot.generated += 1

    def compare(self, state: State) -> None:
        assert np.flatnonzero(state.active).tolist() == sorted(self.slots)
        for number, slot in self.slots.items():
            known = [token for token in slot.ids if token is not None]
            found: dict[str, Any] = {
                "known": len(slot.ids), "held": len(known), "computed": slot.computed,
                "generated": slot.generated,
                "min_tokens": slot.sampling.min_tokens,
            }  # fmt: skip
            assert {name: getattr(state, name)[number].item() for name in found} == found
            names = ("temperature", "top_k", "top_p", "min_p", "presence")
            params = {**{n: getattr(slot.sampling, n) for n in names}, "seed": slot.seed}
            assert {name: state.params[name][number].item() for name in params} == params
            assert state.ids[number].tolist() == known
            for group, table in enumerate(slot.tables):
                assert state.tables.used[group, number] == len(table)
                assert state.tables.entries[group, number, : len(table)].tolist() == table
            assert state.stop_ids[number] is slot.sampling.stop_token_ids or (
                state.stop_ids[number].tolist() == slot.sampling.stop_token_ids.tolist()
            )


def random_step(model: Model, epoch: int, number: int) -> tuple[Step, list[tuple[int, int]]]:
    """A step that may be, taken in by the model; and its runs."""
    dice, slots = model.dice, model.slots
    full = [n for n, slot in slots.items() if len(slot.ids) >= LONGEST]
    finished = full + [n for n in slots if n not in full and dice.random() < 0.1]
    for each in finished:
        del slots[each]
    free = dice.sample([n for n in range(SLOTS) if n not in slots], SLOTS - len(slots))
    entering = [n for n in free if dice.random() < 0.4]
    new = [model.enter(n) for n in entering]
    old = [n for n in slots if n not in entering]
    forked = [n for n in free if old and n not in entering and dice.random() < 0.4]
    forks = [model.fork(dice.choice(old), n) for n in forked]
    steered = [n for n in slots if dice.random() < 0.2]
    tokens = [model.steer(n) for n in steered]
    running = dice.sample(sorted(slots), dice.randrange(len(slots) + 1))
    sized = [model.run(n) for n in running]
    growth = []
    for group in dice.sample(range(len(POOLS)), len(POOLS)):
        grown = [tables[group] for _, tables in sized]
        for slot, blocks in zip(running, grown, strict=True):
            model.grow(group, slot, blocks)
        if any(grown):  # a group that does not grow has no entry
            added = ints(block for blocks in grown for block in blocks)
            growth.append(Growth(group, ints(map(len, grown)), added))
    step = Step(
        epoch=epoch, step=number, finished=ints(finished), new=new, forks=forks,
        copies=[], growth=growth,
        run_slots=ints(running), run_tokens=ints(count for count, _ in sized),
        steered_slots=ints(steered), steered_tokens=ints(tokens),
    )  # fmt: skip
    runs = [(n, count) for n, (count, _) in zip(running, sized, strict=True)]
    return step, runs


@pytest.mark.parametrize("seed", range(12))
def test_random_steps_match_a_reference_model(seed: int) -> None:
    state, model = State(LIMITS), Model(random.Random(seed))
    for epoch in (1, 5):
        model.slots.clear()
        for number in range(40):
            step, runs = random_step(model, epoch, number)
            model.check(state.fold(step), runs)
            model.compare(state)


def test_skipped_run_runs_again() -> None:
    state, model = State(LIMITS), Model(random.Random(3))
    new = [model.enter(n) for n in (0, 1)]
    runs = [(n, len(model.slots[n].ids) - model.slots[n].computed) for n in (0, 1)]
    slots = [model.slots[n] for n in (0, 1)]
    counts = [-(-len(slot.ids) // BLOCK) - len(slot.tables[0]) for slot in slots]
    growth = [Growth(group, ints(counts), ints([3] * sum(counts))) for group in (0, 1)]
    empty = ints()
    step = Step(
        1, 0, empty, new, [], [], growth, ints([0, 1]), ints(count for _, count in runs), empty,
        empty,
    )  # fmt: skip
    state.fold(step)
    before = {name: getattr(state, name).copy() for name in ("known", "generated", "computed")}
    state.sit_out({1})
    assert state.known.tolist() == (before["known"] - [0, 1, 0, 0, 0, 0]).tolist()
    assert state.generated.tolist() == (before["generated"] - [0, 1, 0, 0, 0, 0]).tolist()
    assert state.computed[0] == before["computed"][0] and state.computed[1] == state.known[1] - 1


def test_broken_state_accepts_only_a_newer_epoch() -> None:
    state, model = State(LIMITS), Model(random.Random(1))
    state.fold(random_step(model, 2, 0)[0])
    state.broken = True
    for epoch, number in ((2, 1), (1, 1)):
        with pytest.raises(BadStep, match=f"epoch {epoch} ended with a failed step"):
            state.fold(random_step(Model(random.Random(1)), epoch, number)[0])
    fresh = Model(random.Random(2))
    state.fold(random_step(fresh, 3, 0)[0])
    fresh.needs = model.needs
    for old in ((2, 1), (3, 0), (3, 2)):
        with pytest.raises(BadStep, match="came where step 1 of epoch 3 was due"):
            state.fold(random_step(Model(random.Random(1)), *old)[0])

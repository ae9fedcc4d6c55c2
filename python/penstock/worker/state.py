"""The slots' state on the host. Each step request is applied to it, without device and clock.

A sequence in a slot has `known` tokens; the KV of the first `computed` is in its blocks. A run of n
tokens computes positions computed .. computed + n - 1. A run that reaches the last known token
yields another one, whose id stays on the device, where the next run reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.faults import BadStep
from penstock.grammar import Matcher
from penstock.worker.logprobs import LogprobRequests, StepLogprobRequests
from penstock.worker.protocol.sampling_params import (
    SLOT_PARAMS,
    SamplerVariant,
    SamplingParams,
    sampling_error,
)
from penstock.worker.protocol.settings import Limits
from penstock.worker.protocol.step import (
    Bools,
    FaultKind,
    Fork,
    Ints,
    Longs,
    NewSequence,
    SlotError,
    Step,
)
from penstock.worker.tables import BlockTables, TableWrite


@dataclass
class Work:
    """The device's work for one step. Runs of one token are the first rows."""

    slots: Ints
    starts: Ints  # position of each run's first token
    counts: Ints  # tokens of each run
    decodes: int  # runs of one token, at the front
    yields: Bools  # runs that reach their last known token
    positions: Ints  # of the token that each run would yield
    run_order: Longs  # for each yielding run, in run order, its place among the yielding ones
    writes: list[TableWrite] = field(default_factory=list)
    forks: list[tuple[int, int]] = field(default_factory=list)
    masked: list[tuple[int, Longs]] = field(default_factory=list)  # (run, ids not to yield)
    sampler_variant: SamplerVariant = SamplerVariant.PLAIN  # what the runs that yield need together
    # Slots whose sampling parameters change; sequences and forks with lists among them.
    params: list[int] = field(default_factory=list)
    list_entries: list[NewSequence] = field(default_factory=list)
    list_forks: list[tuple[int, int]] = field(default_factory=list)
    # Runs that follow a grammar: (place among the yielding runs, where the sequence is).
    constrained: list[tuple[int, Matcher]] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)  # slot -> why its grammar cannot continue
    closing: list[int] = field(default_factory=list)  # slots whose grammar lets nothing be opened
    late: set[int] = field(default_factory=set)  # slots that sit the step out: no mask yet
    faults: list[SlotError] = field(default_factory=list)
    logprob_requests: StepLogprobRequests | None = None  # top and prompt logprobs to return

    @property
    def yielding(self) -> int:
        """The number of runs that yield a token."""
        return int(np.count_nonzero(self.yields))


class State:
    """The state of all slots, as arrays indexed by slot."""

    def __init__(self, limits: Limits) -> None:
        n = limits.slots
        self.limits = limits
        self.epoch = 0
        self.next_step = 0
        self.broken = False  # a step failed on the device: only a new epoch mends that
        self.active = np.zeros(n, np.bool_)
        self.known = np.zeros(n, np.int32)
        self.computed = np.zeros(n, np.int32)
        self.generated = np.zeros(n, np.int32)
        self.tables = BlockTables(limits)
        self.params = np.array([SamplingParams().slot_row()] * n, SLOT_PARAMS)
        self.min_tokens = np.zeros(n, np.int64)
        self.stop_ids: list[Longs] = [np.zeros(0, np.int64)] * n
        self.ids: list[Ints] = [np.zeros(0, np.int32)] * n  # the first `held`, known to the host
        self.held = np.zeros(n, np.int32)
        self.sampler_variant = np.zeros(n, np.int8)
        self.matchers: dict[int, Matcher] = {}  # by slot; the runner advances them
        self.logprob_requests = LogprobRequests(limits.slots, limits.vocab)

        # All of a slot's state but its table and seed, which a fork has for itself; what else a
        # slot has on the device is copied by its owner, from `Work.forks`.
        self._copied_lists: tuple[list[Any], ...] = (self.ids, self.stop_ids)
        self._copied: tuple[npt.NDArray[Any], ...] = (
            self.known, self.computed, self.generated, self.held, self.params, self.min_tokens,
            self.sampler_variant,
        )  # fmt: skip

    def fold(self, step: Step) -> Work:
        """Applies a step. If the step breaks the protocol, raises BadStep and changes nothing."""
        self._accept(step)
        faults: list[SlotError] = []
        writes: list[TableWrite] = []
        self.active[step.finished] = False
        if self.matchers:
            for slot in step.finished.tolist():
                self.matchers.pop(slot, None)
        self.logprob_requests.leave(step.finished)
        for sequence in step.new:
            self._enter(sequence, writes, faults)
        forks = [(f.source, f.destination) for f in step.forks if self._fork(f, writes, faults)]
        self._steer(step)
        writes += self.tables.grow(step, self.active)
        work = self._run(step, faults)
        work.writes, work.forks = writes, forks
        entries = [new for new in step.new if self.active[new.slot]]
        work.params = [new.slot for new in entries] + [slot for _, slot in forks]
        work.list_entries = [new for new in entries if self._has_lists(new.slot)]
        work.list_forks = [fork for fork in forks if self._has_lists(fork[1])]
        work.sampler_variant = SamplerVariant(
            (self.sampler_variant[work.slots] * work.yields).max(initial=0)
        )
        if self.logprob_requests.slots:
            runs = work.slots, work.starts, work.counts
            work.logprob_requests = self.logprob_requests.for_step(runs, work.yields, self.ids)
        return work

    def sit_out(self, slots: set[int]) -> None:
        """Marks runs of the last step as not yielding: their last known token is computed again."""
        for slot in slots:
            self.known[slot] -= 1
            self.generated[slot] -= 1
            self.computed[slot] = self.known[slot] - 1

    def _accept(self, step: Step) -> None:
        """Checks step number and sizes; empties the slots if the step begins a newer epoch."""
        runs = step.run_slots
        if step.epoch > self.epoch:
            self.epoch, self.next_step, self.broken = step.epoch, 0, False
            self.active[:] = False
            self.matchers.clear()
            self.logprob_requests.clear()
        if self.broken:
            raise BadStep(f"epoch {step.epoch} ended with a failed step; Reset to a newer one")
        if step.epoch < self.epoch or step.step != self.next_step:
            raise BadStep(
                f"step {step.step} of epoch {step.epoch} came where step {self.next_step} of "
                f"epoch {self.epoch} was due; Reset to a newer epoch"
            )
        if len(runs) != len(step.run_tokens):
            raise BadStep("run_slots and run_tokens differ in length")
        if len(step.steered_slots) != len(step.steered_tokens):
            raise BadStep("steered_slots and steered_tokens differ in length")
        if step.run_tokens.sum() > self.limits.step_tokens:
            raise BadStep(
                f"the step runs {step.run_tokens.sum()} tokens; Loaded.max_step_tokens is "
                f"{self.limits.step_tokens}"
            )
        self.tables.check(step)
        self._check_ids(step)
        self.next_step += 1

    def _check_ids(self, step: Step) -> None:
        blocks = [pool.blocks for pool in self.limits.pools]
        numbered: list[tuple[str, Sequence[int] | Ints | Longs, int]] = [
            ("run_slots", step.run_slots, self.limits.slots),
            ("finished", step.finished, self.limits.slots),
            ("new.slot", [s.slot for s in step.new], self.limits.slots),
            ("forks.source", [f.source for f in step.forks], self.limits.slots),
            ("forks.destination", [f.destination for f in step.forks], self.limits.slots),
            *(("copies.sources", c.sources, blocks[c.group]) for c in step.copies),
            *(("copies.destinations", c.destinations, blocks[c.group]) for c in step.copies),
            *(("growth.blocks", growth.blocks, blocks[growth.group]) for growth in step.growth),
            ("steered_slots", step.steered_slots, self.limits.slots),
            ("steered_tokens", step.steered_tokens, self.limits.vocab),
        ]
        for what, ids, end in numbered:
            if not len(ids):
                continue
            numbers = np.asarray(ids)
            wrong = numbers[(numbers < 0) | (numbers >= end)]
            if len(wrong):
                raise BadStep(f"{what} holds {wrong[0]}; they count from 0 to {end - 1}")
        if len(set(step.run_slots.tolist())) != len(step.run_slots):
            raise BadStep("run_slots names a slot twice")

    def _enter(self, new: NewSequence, writes: list[TableWrite], faults: list[SlotError]) -> None:
        slot, sampling = new.slot, new.sampling
        fault = new.fault
        if fault is None and (error := self._sequence_error(new)) is not None:
            fault = SlotError(slot, error)
        self.active[slot] = fault is None
        self.ids[slot] = new.token_ids
        if fault is not None:
            faults.append(fault)
            return
        self.held[slot] = len(new.token_ids)
        self.known[slot] = len(new.token_ids)
        self.computed[slot] = new.computed
        self.generated[slot] = new.generated
        self.params[slot] = sampling.slot_row()
        self.sampler_variant[slot] = sampling.sampler_variant
        self.min_tokens[slot] = sampling.min_tokens
        self.stop_ids[slot] = sampling.stop_token_ids
        if new.matcher is not None:
            self.matchers[slot] = new.matcher
        writes += self.tables.set(slot, new.tables)
        self.logprob_requests.enter(new)

    def _has_lists(self, slot: int) -> bool:
        """Whether the slot may have lists of sampling parameters on the device."""
        return bool(self.sampler_variant[slot] == SamplerVariant.PROCESSED)

    def _sequence_error(self, new: NewSequence) -> str | None:
        ids, limits = new.token_ids, self.limits
        if not 0 < len(ids) <= limits.sequence_tokens:
            return f"a sequence has {len(ids)} tokens; 1 to {limits.sequence_tokens} are possible"
        if not 0 <= ids.min() <= ids.max() < limits.vocab:
            return f"token id {ids.max()} is outside the vocabulary of {limits.vocab}"
        if new.computed >= len(ids) or new.generated > len(ids):
            return (
                f"{new.computed} tokens computed and {new.generated} generated do not fit "
                f"a sequence of {len(ids)}"
            )
        return sampling_error(new.sampling, limits.vocab) or self.tables.error(
            new.tables, new.computed
        )

    def _fork(self, fork: Fork, writes: list[TableWrite], faults: list[SlotError]) -> bool:
        source, slot = fork.source, fork.destination
        error = self.tables.error(fork.tables, int(self.computed[source]))
        if not self.active[source]:
            error = f"slot {source}, to be forked, holds no sequence"
        self.active[slot] = error is None
        if error is not None:
            faults.append(SlotError(slot, error))
            return False
        for array in self._copied:
            array[slot] = array[source]
        for values in self._copied_lists:
            values[slot] = values[source]
        self.params["seed"][slot] = fork.seed
        if source in self.matchers:
            self.matchers[slot] = self.matchers[source].copy()
        self.logprob_requests.fork(source, slot)
        writes += self.tables.set(slot, fork.tables)
        return True

    def _steer(self, step: Step) -> None:
        """Replaces last tokens that the host knows; the others are replaced on the device."""
        for slot, token in zip(step.steered_slots, step.steered_tokens, strict=True):
            if self.held[slot] == self.known[slot] > 0:
                self.ids[slot] = np.append(self.ids[slot][: self.held[slot] - 1], token)

    def _run(self, step: Step, faults: list[SlotError]) -> Work:
        slots, counts = step.run_slots, step.run_tokens
        ends = self.computed[slots] + counts
        fits = self.active[slots] & (counts > 0) & (ends <= self.known[slots])
        fits &= ends <= self.tables.room(slots)
        if np.count_nonzero(fits) < len(fits):
            failed = {fault.slot for fault in faults}
            faults += self._run_faults(slots[~fits], counts[~fits], failed)
            slots, counts = slots[fits], counts[fits]
        chunks = counts != 1
        order = chunks.argsort(kind="stable")
        slots, counts = slots[order], counts[order]
        starts, known = self.computed[slots], self.known[slots]
        yields = starts + counts == known
        work = Work(
            slots=slots,
            starts=starts,
            counts=counts,
            decodes=len(counts) - int(np.count_nonzero(chunks)),
            yields=yields,
            positions=known,
            run_order=order[yields].argsort(kind="stable"),
            masked=self._masked(slots, yields),
            constrained=self._constrained(slots, yields) if self.matchers else [],
            faults=faults,
        )
        self.computed[slots] += counts
        yielding = slots[yields]
        self.known[yielding] += 1
        self.generated[yielding] += 1
        return work

    def _run_faults(self, slots: Ints, counts: Ints, failed: set[int]) -> list[SlotError]:
        """Returns the errors of runs that cannot run; skips slots that failed earlier."""
        faults = []
        rooms = self.tables.room(slots).tolist()
        for slot, count, room in zip(slots.tolist(), counts.tolist(), rooms, strict=True):
            message = (
                f"slot {slot} cannot run {count} tokens: {self.computed[slot]} of "
                f"{self.known[slot]} tokens are computed and its blocks hold {room}"
            )
            if self.active[slot] and slot not in failed:
                faults.append(SlotError(slot, message, FaultKind.INTERNAL))
            elif slot not in failed and not len(self.ids[slot]):
                faults.append(SlotError(slot, f"slot {slot} holds no sequence", FaultKind.INTERNAL))
            self.active[slot] = False
        return faults

    def _constrained(self, slots: Ints, yields: Bools) -> list[tuple[int, Matcher]]:
        yielding = enumerate(slots[yields].tolist())
        return [(place, self.matchers[slot]) for place, slot in yielding if slot in self.matchers]

    def _masked(self, slots: Ints, yields: Bools) -> list[tuple[int, Longs]]:
        early = yields & (self.generated[slots] < self.min_tokens[slots])
        runs = early.nonzero()[0]
        return [(int(r), self.stop_ids[slots[r]]) for r in runs if len(self.stop_ids[slots[r]])]

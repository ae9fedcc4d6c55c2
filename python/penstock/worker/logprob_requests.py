"""Which sequences want log-probabilities beyond those of their tokens, and what of them in a step.

Of generated tokens that is the likeliest alternatives, and tokens that are named; of a prompt, each
token's own and the likeliest in its place. Part of the worker's state: a fold over slots, without
device. While nobody asks, a step only finds `slots` empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.worker.step import Bools, Ints, Longs, NewSequence


@dataclass(frozen=True)
class PromptSpan:
    """The prompt tokens that one run tells of: those after each token that it computes."""

    run: int
    slot: int
    request_id: int
    start: int  # position of the first
    targets: Ints  # their ids
    top: int


@dataclass(frozen=True)
class StepLogprobRequests:
    """What the runs of one step tell."""

    indices: Longs  # of runs that tell alternatives, among those that yield
    counts: Longs  # how many alternatives each tells
    token_ids: list[Ints]  # and which tokens by their ids; empty if no run does
    spans: list[PromptSpan]


class LogprobRequests:
    """The slots that ask."""

    def __init__(self, slots: int, vocab: int) -> None:
        self.vocab = vocab
        self.slots: set[int] = set()
        self.top = np.zeros(slots, np.int32)
        self.token_ids: dict[int, Ints] = {}
        # Tokens of the prompt that is told of; 0 = none is.
        self.prompt = np.zeros(slots, np.int32)
        self.prompt_top = np.zeros(slots, np.int32)
        self.request = np.zeros(slots, np.uint64)

    def enter(self, new: NewSequence) -> None:
        """Takes note of what a sequence that enters a slot asks."""
        sampling, slot = new.sampling, new.slot
        named = sampling.logprob_token_ids
        if not sampling.top_logprobs and sampling.prompt_logprobs is None and named is None:
            return
        self.slots.add(slot)
        if named is not None:
            self.token_ids[slot] = named
        self.top[slot] = min(sampling.top_logprobs, self.vocab)
        self.request[slot] = new.request_id
        if sampling.prompt_logprobs is not None:
            self.prompt[slot] = len(new.token_ids) - new.generated
            self.prompt_top[slot] = min(sampling.prompt_logprobs, self.vocab)

    def fork(self, source: int, slot: int) -> None:
        """`slot` asks as `source` does, but for the prompt, of which one tells."""
        if source in self.slots and (self.top[source] or source in self.token_ids):
            self.slots.add(slot)
            self.top[slot] = self.top[source]
            if source in self.token_ids:
                self.token_ids[slot] = self.token_ids[source]

    def leave(self, slots: Ints) -> None:
        """These slots are empty."""
        for slot in self.slots.intersection(slots.tolist()) if self.slots else ():
            self.slots.remove(slot)
            self.token_ids.pop(slot, None)
            self.top[slot] = self.prompt[slot] = 0

    def clear(self) -> None:
        """All slots are empty."""
        self.slots.clear()
        self.token_ids.clear()
        self.top[:] = self.prompt[:] = 0

    def for_step(
        self, runs: tuple[Ints, Ints, Ints], yields: Bools, ids: Sequence[Ints]
    ) -> StepLogprobRequests | None:
        """What runs (slots, starts, counts) tell; `ids` are the known tokens of all slots."""
        slots, starts, counts = runs
        yielding = slots[yields]
        top = self.top[yielding]
        names = np.isin(yielding, list(self.token_ids)) if self.token_ids else top > 0
        indices = np.flatnonzero(names | (top > 0))
        none = np.zeros(0, np.int32)
        named = (
            [self.token_ids.get(int(slot), none) for slot in yielding[indices]]
            if self.token_ids
            else []
        )
        lengths = np.minimum(counts, self.prompt[slots] - 1 - starts)
        spans = []
        for run in np.flatnonzero(lengths > 0):
            slot, first = slots[run], int(starts[run]) + 1
            targets = ids[slot][first : first + lengths[run]]
            request, prompt_top = int(self.request[slot]), int(self.prompt_top[slot])
            spans.append(PromptSpan(int(run), int(slot), request, first, targets, prompt_top))
        if not len(indices) and not spans:
            return None
        return StepLogprobRequests(indices, top[indices].astype(np.int64), named, spans)

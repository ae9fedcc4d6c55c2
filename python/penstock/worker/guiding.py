"""The masks of guided sequences, filled by threads while the forward pass runs.

A mask needs the token before it, which the step before chose. So a step with guided rows launches
its forward pass, waits for the tokens of the step before (which the device has long made: it works
on the forward pass), fills the masks, and only then launches the choice. Steps without guided rows
wait for nothing. Every rank of a group fills its own masks, from the same tokens: they are equal.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.guidance import Cursor, words
from penstock.guidance.protocol import Refused
from penstock.worker.state import Work
from penstock.worker.step import Ints, Longs

THREADS = 4  # at most; masks are microseconds each, or a millisecond for a state that is new
ROWS = 32  # of the first buffer; it doubles when there are more


class Tokens(Protocol):
    """Where a launched step's tokens arrive on the host."""

    ids: Tensor
    end: torch.cuda.Event | None  # when they are there; None = when the launch returned


@dataclass(frozen=True)
class Expected:
    """Tokens of a launched step that guides have not taken yet."""

    host: Tokens
    rows: list[int]
    cursors: list[Cursor]


class Guiding:
    """Used by the launch thread; the filling itself runs on threads of its own."""

    def __init__(self, vocab: int, device: torch.device) -> None:
        self.words = words(vocab)
        self.device = device
        self._expected: deque[Expected] = deque()
        self._masks: deque[Tensor] = deque()  # host buffers, in rotation like the steps'
        self._lead: ThreadPoolExecutor | None = None  # made by the first guided step
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, work: Work, samples: Longs) -> Future[Tensor | None]:
        """Starts to fill; the result is for `split`; None if every token may follow."""
        if self._lead is None:
            cores = len(os.sched_getaffinity(0))
            self._lead = ThreadPoolExecutor(1, "guides")
            self._pool = ThreadPoolExecutor(min(THREADS, cores), "masks")
        return self._lead.submit(self._fill, work, samples)

    def expect(self, work: Work, samples: Longs, host: Tokens) -> None:
        """The tokens of the guided rows will be in `host`."""
        rows = [int(samples[place]) for place, _ in work.guided]
        self._expected.append(Expected(host, rows, [cursor for _, cursor in work.guided]))

    def release(self, host: Tokens) -> None:
        """Takes what is expected in `host`, which is about to be written again."""
        if any(expected.host is host for expected in self._expected):
            self.read()

    def read(self) -> None:
        """Waits for all tokens that were launched, and advances the guides."""
        while self._expected:
            expected = self._expected.popleft()
            if expected.host.end is not None:
                expected.host.end.synchronize()
            tokens = expected.host.ids.numpy()[expected.rows].tolist()
            for cursor, token in zip(expected.cursors, tokens, strict=True):
                cursor.advance(token)

    def _fill(self, work: Work, samples: Longs) -> Tensor | None:
        self.read()
        guided = [(place, cursor) for place, cursor in work.guided if not cursor.idle]
        count = len(guided)
        if not count:
            return None
        buffer = self._buffer(count)
        array: Ints = buffer.numpy()
        rows, mask = array[:count], array[count : count * (1 + self.words)]
        rows[:] = samples[[place for place, _ in guided]]
        mask = mask.reshape(count, self.words)
        assert self._pool is not None
        parts = np.array_split(np.arange(count), min(count, THREADS))
        slots = work.slots[work.yields]
        masked = [(int(slots[place]), cursor) for place, cursor in guided]
        for part in self._pool.map(lambda part: _fill_rows(masked, part.tolist(), mask), parts):
            part.note(work)
        return buffer[: count * (1 + self.words)]

    def split(self, filled: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and masks on the device, by one copy."""
        used = filled.to(self.device, non_blocking=True)
        count = len(used) // (1 + self.words)
        return used[:count], used[count:].view(count, self.words)

    def _buffer(self, rows: int) -> Tensor:
        """A host buffer that no copy in flight reads: as many in rotation as steps, and one."""
        size = rows * (1 + self.words)
        if len(self._masks) == 5 and len(self._masks[0]) >= size:
            self._masks.rotate(-1)
            return self._masks[-1]
        while len(self._masks) >= 5:
            self._masks.popleft()
        room = max(ROWS, 1 << (rows - 1).bit_length()) * (1 + self.words)
        pin = self.device.type == "cuda"
        self._masks.append(torch.empty(room, dtype=torch.int32, pin_memory=pin))
        return self._masks[-1]


@dataclass(frozen=True)
class _Part:
    refused: dict[int, str]  # by slot
    closing: list[int]

    def note(self, work: Work) -> None:
        work.refused.update(self.refused)
        work.closing.extend(self.closing)


def _fill_rows(masked: list[tuple[int, Cursor]], places: Sequence[int], mask: Ints) -> _Part:
    """Fills these rows, for these slots. A guide that cannot go on allows everything: its sequence
    has failed."""
    part = _Part({}, [])
    for i in places:
        slot, cursor = masked[i]
        try:
            if cursor.fill(mask[i]):
                part.closing.append(slot)
        except Refused as error:
            mask[i] = -1
            part.refused[slot] = str(error)
    return part

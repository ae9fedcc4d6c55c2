"""The masks of guided sequences, filled while the forward pass runs.

A mask needs the token before it, which the step before chose. So a step with guided rows launches
its forward pass, waits for the tokens of the step before (which the device has long made: it works
on the forward pass), fills the masks, and only then launches the choice. Steps without guided rows
wait for nothing. Every rank of a group fills its own masks, from the same tokens: they are equal.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from penstock.guidance import Cursor, masks, words
from penstock.worker.state import Work
from penstock.worker.step import Ints, Longs

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
    """Used by the launch thread, which waits here without the interpreter's lock."""

    def __init__(self, vocab: int, device: torch.device) -> None:
        self.words = words(vocab)
        self.device = device
        self._expected: deque[Expected] = deque()
        self._masks: deque[Tensor] = deque()  # host buffers, in rotation like the steps'

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
            masks.advance(expected.cursors, tokens)

    def masks(self, work: Work, samples: Longs) -> tuple[Tensor, Tensor] | None:
        """Rows [G] and masks [G, words] of the guided runs on the device, by one copy; None if
        every token may follow. A guide that cannot go on allows everything: its sequence has
        failed."""
        self.read()
        guided = [(place, cursor) for place, cursor in work.guided if not cursor.idle]
        places, cursors = [place for place, _ in guided], [cursor for _, cursor in guided]
        count = len(guided)
        if not count:
            return None
        buffer = self._buffer(count)[: count * (1 + self.words)]
        rows: Ints = buffer[:count].numpy()
        rows[:] = samples[places]
        closing, refused = masks.fill(cursors, buffer[count:].view(count, self.words))
        slots = work.slots[work.yields][places].tolist()
        work.closing.extend(slots[index] for index in closing)
        work.refused.update((slots[index], reason) for index, reason in refused)
        used = buffer.to(self.device, non_blocking=True)
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

"""The masks of constrained sequences, filled while the forward pass runs.

A mask needs the token before it, which the step before chose. So a step with constrained rows
launches
its forward pass, waits for the tokens of the step before (which the device has long made: it works
on the forward pass), fills the masks, and only then launches the choice. Steps without constrained
rows
wait for nothing. Every rank of a group fills its own masks, from the same tokens: they are equal.

A mask may take longer than the forward pass. Then its sequence sits the step out: no token is
chosen for it, it stands where it stood, and a later step runs it again. Ranks of a group do not
agree about which masks are late, so they wait for all.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from penstock.grammar import Matcher, masks, words
from penstock.worker.state import Work
from penstock.worker.step import Ints, Longs

ROWS = 32  # of the first buffer; it doubles when there are more
# Seconds that a step waits for masks behind its forward pass: a share of what the pass took, but at
# least LEAST. Where all its runs wait for masks it holds up none: there it waits ALONE.
SHARE, LEAST, ALONE = 0.1, 0.0002, 0.02
LOOK = 0.0002  # between looks whether a forward pass on a GPU is over


class Tokens(Protocol):
    """Where a launched step's tokens arrive on the host."""

    ids: Tensor
    end: torch.cuda.Event | None  # when they are there; None = when the launch returned


@dataclass(frozen=True)
class LaunchedTokens:
    """Tokens of a launched step that grammars have not taken yet."""

    host: Tokens
    rows: list[int]
    matchers: list[Matcher]


class ForwardPass:
    """The forward pass of a step that is being launched: masks may be made until it ends, and a
    little longer. Made before it."""

    def __init__(self, device: torch.device) -> None:
        self._began = time.perf_counter()
        self._ended: float | None = None
        self._event = torch.cuda.Event() if device.type == "cuda" else None

    def launched(self) -> None:
        """All of it has been launched; on a CPU it is over."""
        if self._event is not None:
            self._event.record()
        else:
            self._ended = time.perf_counter()

    def left(self) -> float:
        """Seconds until masks are late, as far as is known; 0 = they are."""
        if self._event is not None and self._ended is None:
            if not self._event.query():
                return LOOK
            self._ended = time.perf_counter()
        assert self._ended is not None, "it was launched"
        grace = max(LEAST, SHARE * (self._ended - self._began))
        return max(0.0, self._ended + grace - time.perf_counter())


class GrammarMasks:
    """Used by the launch thread, which waits here without the interpreter's lock."""

    def __init__(self, vocab: int, device: torch.device, ranks: int = 1) -> None:
        self.words = words(vocab)
        self.device = device
        self.waits = ranks > 1  # for all masks
        self._expected: deque[LaunchedTokens] = deque()
        self._masks: deque[Tensor] = deque()  # host buffers, in rotation like the steps'

    def expect(self, work: Work, samples: Longs, host: Tokens) -> None:
        """The tokens of the constrained rows will be in `host`, but for those that sit the step
        out."""
        slots = work.slots[work.yields]
        constrained = [each for each in work.constrained if int(slots[each[0]]) not in work.late]
        rows = [int(samples[place]) for place, _ in constrained]
        self._expected.append(LaunchedTokens(host, rows, [matcher for _, matcher in constrained]))

    def release(self, host: Tokens) -> None:
        """Takes what is expected in `host`, which is about to be written again."""
        if any(expected.host is host for expected in self._expected):
            self.read()

    def read(self) -> None:
        """Waits for all tokens that were launched, advances the grammars, and begins their
        masks."""
        while self._expected:
            expected = self._expected.popleft()
            if expected.host.end is not None:
                expected.host.end.synchronize()
            tokens = expected.host.ids.numpy()[expected.rows].tolist()
            masks.advance(expected.matchers, tokens)
            masks.begin(expected.matchers, self.words)

    def masks(
        self, work: Work, samples: Longs, forward: ForwardPass | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """Rows [G] and masks [G, words] of the constrained runs on the device, by one copy; None if
        every token may follow. A grammar that cannot go on allows everything: its sequence has
        failed. So does one whose mask is not there when `forward` is over: its slot is `late`."""
        self.read()
        constrained = [
            (place, matcher) for place, matcher in work.constrained if not matcher.unconstrained
        ]
        places, matchers = (
            [place for place, _ in constrained],
            [matcher for _, matcher in constrained],
        )
        count = len(constrained)
        if not count:
            return None
        buffer = self._buffer(count)[: count * (1 + self.words)]
        rows: Ints = buffer[:count].numpy()
        rows[:] = samples[places]
        left = None
        if forward is not None and not self.waits:
            left = _mask_timeout(forward, alone=count == len(work.slots))
        filled = masks.fill(matchers, buffer[count:].view(count, self.words), left)
        slots = work.slots[work.yields][places].tolist()
        work.closing.extend(slots[index] for index in filled.closing)
        work.refused.update((slots[index], reason) for index, reason in filled.refused)
        work.late.update(slots[index] for index in filled.late)
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


def _mask_timeout(forward: ForwardPass, alone: bool) -> Callable[[], float]:
    """How long a step waits for masks; `alone`: all its runs wait for theirs."""
    if not alone:
        return forward.left
    until = time.perf_counter() + ALONE
    return lambda: max(forward.left(), until - time.perf_counter(), 0.0)

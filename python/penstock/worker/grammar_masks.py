"""The grammar masks of a step, filled during the forward pass.

A mask needs the previous token, which the previous step sampled. So a step with constrained rows
launches its forward pass, waits for the tokens of the previous step (the device finished those
before it started this pass), fills the masks, and only then launches sampling. Steps without
constrained rows do not wait. Every rank of a group fills its own masks from the same tokens, so
they are equal.

A mask may take longer than the forward pass. Then its sequence skips the step: no token is sampled
for it, its state does not change, and a later step runs it again. The ranks of a group may disagree
about which masks are late, so they wait for all of them. So do models with recurrent layers, whose
states have seen the token that would run again.
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
from penstock.worker.protocol.step import Ints, Longs
from penstock.worker.state import Work

ROWS = 32  # of the first buffer; doubled on demand
# Seconds that a step waits for masks after its forward pass: a SHARE of the pass's time, at least
# LEAST. A step whose runs all wait for masks delays nothing else: it waits for ALONE.
SHARE, LEAST, ALONE = 0.1, 0.0002, 0.02
LOOK = 0.0002  # polling interval of a forward pass on a GPU


class Tokens(Protocol):
    """The host buffer of a launched step's tokens."""

    ids: Tensor
    end: torch.cuda.Event | None  # after the copy; None = complete when the launch returned


@dataclass(frozen=True)
class LaunchedTokens:
    """Tokens of a launched step that the matchers have not taken yet."""

    host: Tokens
    rows: list[int]
    matchers: list[Matcher]


class ForwardPass:
    """The forward pass of the step being launched: its masks are due a little after the pass
    ends. Created before the pass."""

    def __init__(self, device: torch.device) -> None:
        self._began = time.perf_counter()
        self._ended: float | None = None
        self._event = torch.cuda.Event() if device.type == "cuda" else None

    def launched(self) -> None:
        """Marks the pass as launched; on a CPU it is complete."""
        if self._event is not None:
            self._event.record()
        else:
            self._ended = time.perf_counter()

    def left(self) -> float:
        """Returns the seconds until masks are late, or until the next poll; 0 = they are late."""
        if self._event is not None and self._ended is None:
            if not self._event.query():
                return LOOK
            self._ended = time.perf_counter()
        assert self._ended is not None, "it was launched"
        grace = max(LEAST, SHARE * (self._ended - self._began))
        return max(0.0, self._ended + grace - time.perf_counter())


class GrammarMasks:
    """The masks of a rank's steps. Used by the launch thread, which waits here with the GIL
    released."""

    def __init__(self, vocab: int, device: torch.device, waits: bool = False) -> None:
        """`waits`: for late masks too."""
        self.words = words(vocab)
        self.device = device
        self.waits = waits
        self._expected: deque[LaunchedTokens] = deque()
        self._masks: deque[Tensor] = deque()  # host buffers, rotated like the steps' buffers

    def expect(self, work: Work, samples: Longs, host: Tokens) -> None:
        """Registers that the tokens of the constrained rows will be in `host`, except for late
        sequences."""
        slots = work.slots[work.yields]
        constrained = [each for each in work.constrained if int(slots[each[0]]) not in work.late]
        rows = [int(samples[place]) for place, _ in constrained]
        self._expected.append(LaunchedTokens(host, rows, [matcher for _, matcher in constrained]))

    def clear(self) -> None:
        """Forgets launched tokens, at the begin of an epoch: their sequences are gone."""
        self._expected.clear()

    def release(self, host: Tokens) -> None:
        """Takes the tokens expected in `host`, which is about to be reused."""
        if any(expected.host is host for expected in self._expected):
            self.read()

    def read(self) -> None:
        """Waits for the tokens of all launched steps, advances the matchers, and starts their
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
        """Returns rows [G] and masks [G, words] of the constrained runs on the device, in one copy;
        None if every token is allowed.

        If a grammar cannot continue, its sequence has failed and its mask allows every token. So
        does a mask that is not ready in time after `forward`; its slot is then `late`.
        """
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
        """Returns a host buffer that no copy in flight reads; the buffers rotate, one more than
        steps in flight."""
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
    """Returns the timeout of a step's masks; `alone`: all its runs wait for masks."""
    if not alone:
        return forward.left
    until = time.perf_counter() + ALONE
    return lambda: max(forward.left(), until - time.perf_counter(), 0.0)

"""Guides of the extension, which needs no interpreter to follow them."""

from __future__ import annotations

import numpy as np

from penstock import _core
from penstock.guidance.protocol import Ends, Ints, Refused


class NativeGuide:
    """A `Compiled` guide."""

    def __init__(self, own: _core.Guide) -> None:
        self.own = own
        self.shortest = own.shortest
        self.size = own.size

    def start(self, ends: Ends, begun: bytes = b"") -> NativeCursor:
        """A cursor before the first token, behind `begun` if the text has begun with it."""
        return NativeCursor(self.own.start(list(ends.tokens), ends.most, begun))

    def needed(self, begun: bytes) -> int | None:
        """Tokens that complete a text which has begun so, 0 if it is not to be completed; None if
        none does, as far as is known."""
        return self.own.needed(begun)


class NativeCursor:
    """A `Cursor`. Those of a step are advanced and filled together: see `masks`."""

    idle = False

    def __init__(self, own: _core.Cursor) -> None:
        self.own = own

    @property
    def whole(self) -> bool:
        """Whether the text may end here."""
        return self.own.whole

    @property
    def ended(self) -> bool:
        """Whether nothing of the text can follow."""
        return self.own.ended

    def advance(self, token: int) -> None:
        """Takes one emitted token."""
        self.own.advance([token])

    def fill(self, row: Ints) -> bool:
        """Writes the mask of the next token."""
        try:
            mask, closing = self.own.mask(len(row))
        except ValueError as error:
            raise Refused(str(error)) from error
        row[:] = np.frombuffer(mask, np.int32)
        return closing

    def copy(self) -> NativeCursor:
        """Another sequence at the same place."""
        return NativeCursor(self.own.copy())

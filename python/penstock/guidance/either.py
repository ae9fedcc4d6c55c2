"""Guides made of others: one behind a special token, and one of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from penstock.guidance.protocol import Compiled, Cursor, Ends, Ints, set_bits


class MarkedGuide:
    """A `Compiled` guide: a special token, which no text spells, and then another guide's text."""

    def __init__(self, inner: Compiled, mark: int) -> None:
        self.inner = inner
        self.mark = mark
        self.shortest = 1 + inner.shortest
        self.size = inner.size

    def start(self, ends: Ends, begun: bytes = b"") -> MarkedCursor:
        """A cursor before the special token."""
        assert not begun, "no text is the beginning of a special token"
        return MarkedCursor(self, ends)

    def needed(self, begun: bytes) -> int | None:
        """Tokens that complete a text which has begun so; None if none does."""
        needed = None if begun else self.inner.needed(b"")
        return None if needed is None else 1 + needed


class MarkedCursor:
    """A `Cursor`: before the special token, or in the guide behind it."""

    idle = False

    def __init__(self, guide: MarkedGuide, ends: Ends) -> None:
        self.guide = guide
        self.ends = ends
        self.inner: Cursor | None = None
        self._lost = False  # something else came first

    @property
    def whole(self) -> bool:
        """Whether the text may end here."""
        return self.inner is not None and self.inner.whole

    @property
    def ended(self) -> bool:
        """Whether nothing of the text can follow."""
        return self._lost if self.inner is None else self.inner.ended

    def advance(self, token: int) -> None:
        """Takes one emitted token."""
        if self.inner is not None:
            self.inner.advance(token)
        elif token == self.guide.mark and not self._lost:
            self.inner = self.guide.inner.start(replace(self.ends, most=self.ends.most - 1))
        else:
            self._lost = True

    def fill(self, row: Ints) -> bool:
        """Writes the mask of the next token."""
        if self.inner is not None:
            return self.inner.fill(row)
        row[:] = 0
        set_bits(row, self.ends.tokens if self._lost else (self.guide.mark,))
        return False

    def copy(self) -> MarkedCursor:
        """Another sequence at the same place."""
        twin = MarkedCursor(self.guide, self.ends)
        twin.inner = None if self.inner is None else self.inner.copy()
        twin._lost = self._lost
        return twin


class EitherGuide:
    """A `Compiled` guide: a text of the one guide or of the other."""

    def __init__(self, guides: Sequence[Compiled]) -> None:
        self.guides = tuple(guides)
        self.shortest = min(guide.shortest for guide in guides)
        self.size = sum(guide.size for guide in guides)

    def start(self, ends: Ends, begun: bytes = b"") -> EitherCursor:
        """A cursor in all guides whose texts there are tokens for."""
        able = [g for g in self.guides if _fits(g.needed(begun), ends.most)] or self.guides
        return EitherCursor(ends, [guide.start(ends, begun) for guide in able])

    def needed(self, begun: bytes) -> int | None:
        """Tokens that complete a text which has begun so; None if none does."""
        found = (guide.needed(begun) for guide in self.guides)
        return min((needed for needed in found if needed is not None), default=None)


def _fits(needed: int | None, most: int) -> bool:
    return needed is not None and needed <= most


class EitherCursor:
    """A `Cursor`: those that what has come may still belong to."""

    idle = False

    def __init__(self, ends: Ends, cursors: list[Cursor]) -> None:
        self.ends = ends
        self.cursors = cursors

    @property
    def whole(self) -> bool:
        """Whether the text may end here."""
        return any(cursor.whole for cursor in self.cursors)

    @property
    def ended(self) -> bool:
        """Whether nothing of the text can follow."""
        return not self.cursors

    def advance(self, token: int) -> None:
        """Takes one emitted token."""
        for cursor in self.cursors:
            cursor.advance(token)
        self.cursors = [cursor for cursor in self.cursors if not cursor.ended]

    def fill(self, row: Ints) -> bool:
        """Writes the mask of the next token: what any of them allows."""
        own, narrowed = np.zeros_like(row), False
        row[:] = 0
        for cursor in self.cursors:
            narrowed |= cursor.fill(own)
            row |= own
        if not self.cursors:
            set_bits(row, self.ends.tokens)
        return narrowed

    def copy(self) -> EitherCursor:
        """Another sequence at the same place."""
        return EitherCursor(self.ends, [cursor.copy() for cursor in self.cursors])

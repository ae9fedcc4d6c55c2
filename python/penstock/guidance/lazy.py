"""Guides that begin in the middle of an answer: its text is free until something opens one.

A call that a model makes by itself is such a guide: all may be said until the mark that opens a
call, and from there on the call is guided. Until then a sequence has no mask at all, but for tokens
that would open the guide in a way that it cannot follow, or with too few tokens left for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from penstock.guidance.protocol import Compiled, Cursor, Ends, Ints, clear_bits
from penstock.guidance.vocabulary import Vocabulary
from penstock.guidance.watch import Follower, Opening, Watch

NEVER = 1 << 30  # tokens that complete what cannot be completed


class Rated:
    """Tokens, and how many more each of them needs behind it."""

    def __init__(self, tokens: Sequence[int], needs: Sequence[int]) -> None:
        self.tokens = np.array(tokens, np.int32)
        self.needs = np.array(needs, np.int32)
        self.most = max(needs, default=0)

    def barred(self, left: int) -> Ints:
        """Those that may not be the next of `left` tokens."""
        return self.tokens[self.needs >= left]

    def late(self, left: int) -> bool:
        """Whether that is so for want of tokens."""
        return bool(np.any((self.needs >= left) & (self.needs < NEVER)))


class LazyGuide:
    """A `Compiled` guide: free text, with texts of another guide where they are opened."""

    shortest = 0

    def __init__(self, inner: Compiled, opening: Opening, vocabulary: Vocabulary) -> None:
        self.inner = inner
        self.opening = opening
        self.vocabulary = vocabulary
        self.watch = Watch(opening)
        whole = inner.shortest if opening.heads else self._needed(opening.spelt)
        self.rest = [self._spelling(opening.mark[n:]) + whole for n in range(self.watch.marked)]
        self.rest.append(whole)
        self._rated: dict[int, Rated] = {}
        for state in {*range(self.watch.marked), self.watch.first, self.watch.next}:
            self.rated(state)
        tokens = sum(len(rated.tokens) for rated in self._rated.values())
        self.size = inner.size + len(self.watch.table) + 8 * tokens

    def start(self, ends: Ends, begun: bytes = b"") -> LazyCursor:
        """A cursor in free text."""
        cursor = LazyCursor(self, ends, self.watch.first)
        cursor.take(begun)
        return cursor

    def needed(self, begun: bytes) -> int | None:
        """Nothing: free text is whole."""
        return 0

    def text(self, token: int) -> bytes:
        """What a token says in free text."""
        if token >= self.vocabulary.size:
            return b""
        if token == self.vocabulary.marks.get(self.opening.mark):
            return self.opening.mark
        return self.vocabulary.tokens[token]

    def rated(self, state: int) -> Rated:
        """What the tokens need that open a call or go on to, in a state of the watch."""
        found = self._rated.get(state)
        if found is None:
            near = list(self.watch.followers(state, self.vocabulary))
            found = Rated([each.token for each in near], [self._behind(each) for each in near])
            self._rated[state] = found
        return found

    def _behind(self, follower: Follower) -> int:
        """Tokens that must be left behind a token."""
        if follower.rest is not None:
            return self._needed(self.watch.spelt[follower.after] + follower.rest)
        # A mark's first byte may be anything, but the answer does not end with it.
        return 1 if follower.after == 1 < self.watch.marked else self.rest[follower.after]

    def _needed(self, begun: bytes) -> int:
        needed = self.inner.needed(begun)
        return NEVER if needed is None else needed

    def _spelling(self, text: bytes) -> int:
        """Tokens that spell what is left of a mark; none if they cannot."""
        return len(self.vocabulary.segmented(text) or ())


class LazyCursor:
    """A `Cursor`: how much of an opening has come, or where the guide behind it is."""

    ended = False

    def __init__(self, guide: LazyGuide, ends: Ends, state: int) -> None:
        self.guide = guide
        self.ends = ends
        self.state = state
        self.left = ends.most
        self.inner: Cursor | None = None

    @property
    def whole(self) -> bool:
        """Free text is."""
        return self.inner is None

    @property
    def idle(self) -> bool:
        """Whether everything may follow."""
        return self.inner is None and self.guide.rated(self.state).most < self.left

    def advance(self, token: int) -> None:
        """Takes one emitted token."""
        self.left -= 1
        guide = self.guide
        if self.inner is not None:
            self.inner.advance(token)
            if self.inner.whole:
                self.inner, self.state = None, guide.watch.next
            return
        self.take(guide.text(token))

    def take(self, text: bytes) -> None:
        """Takes free text, which may open the guide."""
        guide = self.guide
        self.state, rest = guide.watch.run(self.state, text)
        if rest is not None:
            ends = replace(self.ends, most=self.left)
            self.inner = guide.inner.start(ends, guide.watch.spelt[self.state] + rest)

    def fill(self, row: Ints) -> bool:
        """Writes the mask of the next token. Free text is never short of tokens, but for a mark
        that the model has begun to spell."""
        if self.inner is not None:
            return self.inner.fill(row)
        rated = self.guide.rated(self.state)
        row[:] = -1
        clear_bits(row, rated.barred(self.left))
        return 0 < self.state <= self.guide.watch.marked and rated.late(self.left)

    def copy(self) -> LazyCursor:
        """Another sequence at the same place."""
        twin = LazyCursor(self.guide, self.ends, self.state)
        twin.left = self.left
        twin.inner = None if self.inner is None else self.inner.copy()
        return twin

"""Guides that begin in the middle of an answer: its text is free until something opens one.

A call that a model makes by itself is such a guide: all may be said until the mark that opens a
call, and from there on the call is guided. Until then a sequence has no mask at all, but for tokens
that would open the guide in a way that it cannot follow, or with too few tokens left for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from penstock.guidance.protocol import Compiled, Cursor, Ends, Ints, clear_bits
from penstock.guidance.vocabulary import Vocabulary

BLANKS = b" \t\r\n"
NEVER = 1 << 30  # tokens that complete what cannot be completed


@dataclass(frozen=True)
class Opening:
    """What opens a guide: `mark`, blanks and then `then`, if that is anything."""

    mark: bytes
    then: bytes = b""  # one byte, or none
    spelt: bytes = b""  # what of the guide's text has come with it
    at_start: bool = False  # `then` alone opens it at the start of an answer
    again: bytes = b""  # after a text of the guide, `then` alone opens another behind these


class Watch:
    """Looks for an opening, byte by byte. A state below `ready` counts the bytes of the mark that
    have come; `ready` is the place between the mark and what follows it."""

    def __init__(self, opening: Opening) -> None:
        self.mark, self.then = opening.mark, opening.then
        self.ready = len(opening.mark)
        self.states = self.ready + bool(opening.then)
        self._skipped = BLANKS + opening.again
        self._shorter = [
            0
        ] * self.ready  # the next shorter beginning of the mark that also ends here
        for place in range(1, self.ready):
            self._shorter[place] = self._after(self._shorter[place - 1], self.mark[place])

    def run(self, state: int, text: bytes) -> tuple[int, bytes | None]:
        """The state after `text`, or what of it follows the opening."""
        for place, byte in enumerate(text):
            if state == self.ready and byte in self.then:
                return state, text[place + 1 :]
            if state == self.ready and byte in self._skipped:
                continue
            state = self._after(0 if state == self.ready else state, byte)
            if state == self.ready and not self.then:
                return state, text[place + 1 :]
        return state, None

    def openers(self, vocabulary: Vocabulary) -> list[list[tuple[int, bytes]]]:
        """For each state the tokens that complete the opening, with what follows it in them."""
        last = self.then or self.mark[-1:]
        found: list[list[tuple[int, bytes]]] = [[] for _ in range(self.states)]
        for token, text in enumerate(vocabulary.tokens):
            if last in text:
                self._note(token, text, found)
        special = vocabulary.marks.get(self.mark)
        if special is not None:
            self._note(special, self.mark, found)
        return found

    def _note(self, token: int, text: bytes, found: list[list[tuple[int, bytes]]]) -> None:
        for state in range(self.states):
            _, rest = self.run(state, text)
            if rest is not None:
                found[state].append((token, rest))

    def _after(self, count: int, byte: int) -> int:
        while count and self.mark[count] != byte:
            count = self._shorter[count - 1]
        return count + (self.mark[count] == byte)


class LazyGuide:
    """A `Compiled` guide: free text, with texts of another guide where they are opened."""

    shortest = 0

    def __init__(self, inner: Compiled, opening: Opening, vocabulary: Vocabulary) -> None:
        self.inner = inner
        self.opening = opening
        self.vocabulary = vocabulary
        self.watch = Watch(opening)
        self.first = self.watch.ready if opening.at_start else 0
        self.next = self.watch.ready if opening.again else 0  # behind a text of the guide
        needs: dict[bytes, int] = {}
        self._openers: list[tuple[Ints, Ints]] = []
        for found in self.watch.openers(vocabulary):
            for _, rest in found:
                if rest not in needs:
                    needed = inner.needed(opening.spelt + rest)
                    needs[rest] = NEVER if needed is None else needed
            tokens = np.array([token for token, _ in found], np.int32)
            self._openers.append((tokens, np.array([needs[rest] for _, rest in found], np.int32)))
        self.size = inner.size + sum(8 * len(tokens) for tokens, _ in self._openers)

    def start(self, ends: Ends, begun: bytes = b"") -> LazyCursor:
        """A cursor in free text."""
        cursor = LazyCursor(self, ends, self.first)
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

    def barred(self, state: int, left: int) -> Ints:
        """Tokens that may not follow in free text, for they open what cannot be completed."""
        tokens, needs = self._openers[state]
        return tokens[needs >= left]


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
        return self.inner is None and not len(self.guide.barred(self.state, self.left))

    def advance(self, token: int) -> None:
        """Takes one emitted token."""
        self.left -= 1
        guide = self.guide
        if self.inner is not None:
            self.inner.advance(token)
            if self.inner.whole:
                self.inner, self.state = None, guide.next
            return
        self.take(guide.text(token))

    def take(self, text: bytes) -> None:
        """Takes free text, which may open the guide."""
        guide = self.guide
        self.state, rest = guide.watch.run(self.state, text)
        if rest is not None:
            ends = replace(self.ends, most=self.left)
            self.inner = guide.inner.start(ends, guide.opening.spelt + rest)

    def fill(self, row: Ints) -> bool:
        """Writes the mask of the next token. Free text is never short of tokens."""
        if self.inner is not None:
            return self.inner.fill(row)
        row[:] = -1
        clear_bits(row, self.guide.barred(self.state, self.left))
        return False

    def copy(self) -> LazyCursor:
        """Another sequence at the same place."""
        twin = LazyCursor(self.guide, self.ends, self.state)
        twin.left = self.left
        twin.inner = None if self.inner is None else self.inner.copy()
        return twin

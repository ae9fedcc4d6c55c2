"""Detects the opening of a grammar in free text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.grammar.protocol import GrammarRejected
from penstock.grammar.vocabulary import Vocabulary

BLANKS = b" \t\r\n"
MOST_STATES = 30_000  # a table of 15 MB; int16 holds them
Row = npt.NDArray[np.int16]  # [256]: the state after a byte


@dataclass(frozen=True)
class OpeningHead:
    """An unambiguous beginning of a grammar's texts."""

    parts: tuple[bytes, ...]  # each may follow blanks
    spelt: bytes  # the prefix of the grammar's text that it stands for


@dataclass(frozen=True)
class Opening:
    """The opening of a grammar: `mark`, followed by one of `heads`, if there are any."""

    mark: bytes
    spelt: bytes = b""  # without heads: the prefix of the grammar's text in the mark
    heads: tuple[OpeningHead, ...] = ()
    at_start: bool = False  # a head without mark opens it at the start of the output
    again: bytes = b""  # bytes after which a head without mark opens the next text


@dataclass(frozen=True)
class OpeningToken:
    """A token that continues or completes an opening."""

    token: int
    after: int  # the next state
    rest: bytes | None  # its text after the opening, if it completes that


class OpeningDetector:
    """A DFA over bytes.

    A state up to `marked` is the number of matched bytes of the mark; the states in `spelt` are
    after an opening. Raises GrammarRejected if there would be too many states.
    """

    def __init__(self, opening: Opening) -> None:
        self.mark = opening.mark
        self.marked = len(opening.mark)
        self.spelt: dict[int, bytes] = {}  # the prefix of the grammar's text in the opening
        self._rows = self._mark_rows()
        self.first = self.next = 0  # at the start of the output, and after a text of the grammar
        if opening.heads:
            self._add_heads(opening)
        else:
            self._open(self.marked, opening.spelt)
        self.states = len(self._rows)
        self.table = np.concatenate(self._rows).tobytes()  # int16 [states, 256]
        self._rows.clear()
        self._after = memoryview(self.table).cast("h")

    def run(self, state: int, text: bytes) -> tuple[int, bytes | None]:
        """Returns the state after `text`. If it completes the opening, returns the state there
        and the rest of the text."""
        for place, byte in enumerate(text):
            state = self._after[256 * state + byte]
            if state in self.spelt:
                return state, text[place + 1 :]
        return state, None

    def followers(self, state: int, vocabulary: Vocabulary) -> Iterator[OpeningToken]:
        """Yields the tokens that complete the opening, and those that end within its mark."""
        targets = [*range(1, self.marked), *({self.marked} - {state}), *self.spelt]
        found = vocabulary.own.tokens_leading_to(self.table, state, targets)
        special = vocabulary.special_tokens.get(self.mark)
        if special is not None:
            found.append((special, self.run(state, self.mark)[0]))
        for token, after in found:
            text = self.mark if token == special else vocabulary.tokens[token]
            yield OpeningToken(token, after, self.run(state, text)[1])

    def _mark_rows(self) -> list[Row]:
        """Returns the rows of the states below `marked` (Knuth-Morris-Pratt)."""
        rows, shorter = list[Row](), 0
        for count, byte in enumerate(self.mark):
            row = rows[shorter].copy() if count else np.zeros(256, np.int16)
            shorter = int(row[byte])
            row[byte] = count + 1
            rows.append(row)
        return rows

    def _add_heads(self, opening: Opening) -> None:
        """Adds the states after the mark: before a head, and inside heads."""
        marked = self._add()
        for head in opening.heads:
            self._add_head(marked, head)
        start, between = self._copied(marked), self._copied(marked)
        self._rows[between][list(opening.again)] = start
        self.first = start if opening.at_start else 0
        self.next = between if opening.again else 0

    def _add_head(self, state: int, head: OpeningHead) -> None:
        for part in head.parts:
            self._rows[state][list(BLANKS)] = state
            for byte in part:
                if self._rows[state][byte] <= self.marked:
                    self._rows[state][byte] = self._add()
                state = int(self._rows[state][byte])
                if state in self.spelt:
                    return
        self._open(state, head.spelt)

    def _add(self) -> int:
        """Adds a state with the transitions of free text."""
        if len(self._rows) == MOST_STATES:
            raise GrammarRejected("the tools' names are too long in total")
        self._rows.append(self._rows[0].copy())
        return len(self._rows) - 1

    def _copied(self, state: int) -> int:
        """Adds a copy of a state to which blanks lead back."""
        row = self._rows[state].copy()
        row[row == state] = len(self._rows)
        self._rows.append(row)
        return len(self._rows) - 1

    def _open(self, state: int, spelt: bytes) -> None:
        """Makes a state final: the grammar begins here and takes over from the DFA."""
        if state == len(self._rows):
            self._rows.append(np.zeros(256, np.int16))
        self._rows[state][:] = state
        self.spelt[state] = spelt

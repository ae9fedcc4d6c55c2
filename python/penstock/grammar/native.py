"""Grammars of the extension, which needs no interpreter to follow them."""

from __future__ import annotations

import numpy as np

from penstock import _core
from penstock.grammar.protocol import EndConditions, GrammarRejected, Ints


class NativeGrammar:
    """A `CompiledGrammar`."""

    def __init__(self, own: _core.CompiledGrammar) -> None:
        self.own = own
        self.shortest = own.shortest
        self.size = own.size

    def start(self, ends: EndConditions, prefix: bytes = b"") -> NativeMatcher:
        """A matcher before the first token, behind `prefix` if the text has begun with it."""
        return NativeMatcher(self.own.start(list(ends.tokens), ends.most, prefix))

    def needed(self, prefix: bytes) -> int | None:
        """Tokens that complete a text which has begun so, 0 if it is not to be completed; None if
        none does, as far as is known."""
        return self.own.needed(prefix)


class NativeMatcher:
    """A `Matcher`. Those of a step are advanced and filled together: see `masks`."""

    unconstrained = False

    def __init__(self, own: _core.Matcher) -> None:
        self.own = own

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        return self.own.is_accepting

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
            raise GrammarRejected(str(error)) from error
        row[:] = np.frombuffer(mask, np.int32)
        return closing

    def copy(self) -> NativeMatcher:
        """Another sequence at the same place."""
        return NativeMatcher(self.own.copy())

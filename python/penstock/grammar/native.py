"""Grammars of the Rust extension, which runs them with the GIL released."""

from __future__ import annotations

import numpy as np

from penstock import _core
from penstock.grammar.protocol import EndConditions, GrammarRejected, Ints


class NativeGrammar:
    """A `CompiledGrammar` of the extension."""

    def __init__(self, own: _core.CompiledGrammar) -> None:
        self.own = own
        self.shortest = own.shortest
        self.size = own.size

    def start(self, ends: EndConditions, prefix: bytes = b"") -> NativeMatcher:
        """Returns a matcher behind `prefix`, before the first token."""
        return NativeMatcher(self.own.start(list(ends.tokens), ends.most, prefix))

    def needed(self, prefix: bytes) -> int | None:
        """Returns the tokens that complete a text that begins with `prefix`, 0 if texts are not
        completed; None if no completion is known."""
        return self.own.needed(prefix)


class NativeMatcher:
    """A `Matcher` of the extension. `masks` advances and fills the matchers of a step together."""

    unconstrained = False

    def __init__(self, own: _core.Matcher) -> None:
        self.own = own

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        return self.own.is_accepting

    @property
    def ended(self) -> bool:
        """Whether the text is over."""
        return self.own.ended

    def advance(self, token: int) -> None:
        """Advances by one emitted token."""
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
        """Returns a copy for another sequence."""
        return NativeMatcher(self.own.copy())

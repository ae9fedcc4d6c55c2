"""Composite grammars: fixed tokens before a grammar, and the union of grammars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from penstock.grammar.protocol import CompiledGrammar, EndConditions, Ints, Matcher, set_bits


class ForcedPrefixGrammar:
    """A `CompiledGrammar`: fixed tokens, such as a special token that no text spells, followed
    by another grammar."""

    def __init__(self, inner: CompiledGrammar, tokens: tuple[int, ...]) -> None:
        self.inner = inner
        self.tokens = tokens
        self.shortest = len(tokens) + inner.shortest
        self.size = inner.size

    def start(self, ends: EndConditions, prefix: bytes = b"") -> ForcedPrefixMatcher:
        """Returns a matcher before the first of the tokens; no text may precede them."""
        return ForcedPrefixMatcher(self, ends, lost=bool(prefix))

    def needed(self, prefix: bytes) -> int | None:
        """Returns the tokens that complete a text that begins with `prefix`; None if there is
        none."""
        needed = None if prefix else self.inner.needed(b"")
        return None if needed is None else len(self.tokens) + needed


class ForcedPrefixMatcher:
    """A `Matcher`: before one of the forced tokens, or in the grammar after them."""

    def __init__(
        self, grammar: ForcedPrefixGrammar, ends: EndConditions, lost: bool = False
    ) -> None:
        self.grammar = grammar
        self.ends = ends
        self.inner: Matcher | None = None
        self._position = 0  # the next of the forced tokens
        self._lost = lost  # something else came first

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        return self.inner is not None and self.inner.is_accepting

    @property
    def ended(self) -> bool:
        """Whether the text is over."""
        return self._lost if self.inner is None else self.inner.ended

    @property
    def unconstrained(self) -> bool:
        """Whether every token is allowed."""
        return self.inner is not None and self.inner.unconstrained

    def advance(self, token: int) -> None:
        """Advances by one emitted token."""
        if self.inner is not None:
            self.inner.advance(token)
            return
        tokens = self.grammar.tokens
        self._lost = self._lost or token != tokens[self._position]
        self._position += not self._lost
        if self._position == len(tokens):
            most = self.ends.most - len(tokens)
            self.inner = self.grammar.inner.start(replace(self.ends, most=most))

    def fill(self, row: Ints) -> bool:
        """Writes the mask of the next token."""
        if self.inner is not None:
            return self.inner.fill(row)
        row[:] = 0
        set_bits(row, self.ends.tokens if self._lost else (self.grammar.tokens[self._position],))
        return False

    def copy(self) -> ForcedPrefixMatcher:
        """Returns a copy for another sequence."""
        copy = ForcedPrefixMatcher(self.grammar, self.ends, self._lost)
        copy.inner = None if self.inner is None else self.inner.copy()
        copy._position = self._position
        return copy


class UnionGrammar:
    """A `CompiledGrammar`: a text of any of several grammars."""

    def __init__(self, grammars: Sequence[CompiledGrammar]) -> None:
        self.grammars = tuple(grammars)
        self.shortest = min(grammar.shortest for grammar in grammars)
        self.size = sum(grammar.size for grammar in grammars)

    def start(self, ends: EndConditions, prefix: bytes = b"") -> UnionMatcher:
        """Returns a matcher of all grammars that can complete `prefix` within the token budget."""
        able = [g for g in self.grammars if _fits(g.needed(prefix), ends.most)] or self.grammars
        return UnionMatcher(ends, [grammar.start(ends, prefix) for grammar in able])

    def needed(self, prefix: bytes) -> int | None:
        """Returns the tokens that complete a text that begins with `prefix`; None if there is
        none."""
        found = (grammar.needed(prefix) for grammar in self.grammars)
        return min((needed for needed in found if needed is not None), default=None)


def _fits(needed: int | None, most: int) -> bool:
    return needed is not None and needed <= most


class UnionMatcher:
    """A `Matcher`: the matchers that accept the text so far."""

    unconstrained = False

    def __init__(self, ends: EndConditions, matchers: list[Matcher]) -> None:
        self.ends = ends
        self.matchers = matchers

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        return any(matcher.is_accepting for matcher in self.matchers)

    @property
    def ended(self) -> bool:
        """Whether the text is over."""
        return not self.matchers

    def advance(self, token: int) -> None:
        """Advances by one emitted token."""
        for matcher in self.matchers:
            matcher.advance(token)
        self.matchers = [matcher for matcher in self.matchers if not matcher.ended]

    def fill(self, row: Ints) -> bool:
        """Writes the mask of the next token: the union of the matchers' masks."""
        own, narrowed = np.zeros_like(row), False
        row[:] = 0
        for matcher in self.matchers:
            narrowed |= matcher.fill(own)
            row |= own
        if not self.matchers:
            set_bits(row, self.ends.tokens)
        return narrowed

    def copy(self) -> UnionMatcher:
        """Returns a copy for another sequence."""
        return UnionMatcher(self.ends, [matcher.copy() for matcher in self.matchers])

"""Grammars that begin in the middle of free text, at a trigger.

A tool call that the model starts by itself is such a grammar: the text is free up to the mark of a
call, and the call is constrained. In free text a sequence has no mask, except for tokens that would
open the grammar with an invalid prefix, or with too few tokens left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from penstock.grammar.opening import Opening, OpeningDetector, OpeningToken
from penstock.grammar.protocol import CompiledGrammar, EndConditions, Ints, Matcher, clear_bits
from penstock.grammar.vocabulary import Vocabulary

NEVER = 1 << 30  # tokens needed where there is no completion


class TokenNeeds:
    """Tokens, and the number of tokens that must be left after each."""

    def __init__(self, tokens: Sequence[int], needs: Sequence[int]) -> None:
        self.tokens = np.array(tokens, np.int32)
        self.needs = np.array(needs, np.int32)
        self.most = max(needs, default=0)

    def barred(self, left: int) -> Ints:
        """Returns the tokens that are not allowed if `left` tokens are left."""
        return self.tokens[self.needs >= left]

    def late(self, left: int) -> bool:
        """Returns whether the token budget alone forbids one of them."""
        return bool(np.any((self.needs >= left) & (self.needs < NEVER)))


class LazyGrammar:
    """A `CompiledGrammar`: free text, with texts of another grammar after each opening."""

    shortest = 0

    def __init__(self, inner: CompiledGrammar, opening: Opening, vocabulary: Vocabulary) -> None:
        self.inner = inner
        self.opening = opening
        self.vocabulary = vocabulary
        self.detector = OpeningDetector(opening)
        whole = inner.shortest if opening.heads else self._needed(opening.spelt)
        self.rest = [self._spelling(opening.mark[n:]) + whole for n in range(self.detector.marked)]
        self.rest.append(whole)
        self._rated: dict[int, TokenNeeds] = {}
        for state in {*range(self.detector.marked), self.detector.first, self.detector.next}:
            self.rated(state)
        tokens = sum(len(rated.tokens) for rated in self._rated.values())
        self.size = inner.size + len(self.detector.table) + 8 * tokens

    def start(self, ends: EndConditions, prefix: bytes = b"") -> LazyMatcher:
        """Returns a matcher in free text."""
        matcher = LazyMatcher(self, ends, self.detector.first)
        matcher.take(prefix)
        return matcher

    def needed(self, prefix: bytes) -> int | None:
        """Returns 0: free text may end anywhere."""
        return 0

    def text(self, token: int) -> bytes:
        """Returns the text of a token in free text."""
        if token >= self.vocabulary.size:
            return b""
        if token == self.vocabulary.special_tokens.get(self.opening.mark):
            return self.opening.mark
        return self.vocabulary.tokens[token]

    def rated(self, state: int) -> TokenNeeds:
        """Returns the tokens that complete or continue an opening in a state of the detector,
        with their needs."""
        found = self._rated.get(state)
        if found is None:
            near = list(self.detector.followers(state, self.vocabulary))
            found = TokenNeeds([each.token for each in near], [self._behind(each) for each in near])
            self._rated[state] = found
        return found

    def _behind(self, follower: OpeningToken) -> int:
        """Returns the tokens that must be left after a token."""
        if follower.rest is not None:
            return self._needed(self.detector.spelt[follower.after] + follower.rest)
        # A mark's first byte is often plain text, so it only must not be the last token.
        return 1 if follower.after == 1 < self.detector.marked else self.rest[follower.after]

    def _needed(self, prefix: bytes) -> int:
        needed = self.inner.needed(prefix)
        return NEVER if needed is None else needed

    def _spelling(self, text: bytes) -> int:
        """Returns the number of tokens that spell the rest of a mark; 0 if none do."""
        return len(self.vocabulary.shortest_tokenization(text) or ())


class LazyMatcher:
    """A `Matcher`: in free text (the detector's state), or in the grammar after an opening."""

    ended = False

    def __init__(self, grammar: LazyGrammar, ends: EndConditions, state: int) -> None:
        self.grammar = grammar
        self.ends = ends
        self.state = state
        self.left = ends.most
        self.inner: Matcher | None = None

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here: in free text."""
        return self.inner is None

    @property
    def unconstrained(self) -> bool:
        """Whether every token is allowed."""
        return self.inner is None and self.grammar.rated(self.state).most < self.left

    def advance(self, token: int) -> None:
        """Advances by one emitted token."""
        self.left -= 1
        grammar = self.grammar
        if self.inner is not None:
            self.inner.advance(token)
            if self.inner.is_accepting:
                self.inner, self.state = None, grammar.detector.next
            return
        self.take(grammar.text(token))

    def take(self, text: bytes) -> None:
        """Advances by free text, which may open the grammar."""
        grammar = self.grammar
        self.state, rest = grammar.detector.run(self.state, text)
        if rest is not None:
            ends = replace(self.ends, most=self.left)
            self.inner = grammar.inner.start(ends, grammar.detector.spelt[self.state] + rest)

    def fill(self, row: Ints) -> bool:
        """Writes the mask of the next token. Returns whether the token budget forbids the rest
        of a mark that the model has begun."""
        if self.inner is not None:
            return self.inner.fill(row)
        rated = self.grammar.rated(self.state)
        row[:] = -1
        clear_bits(row, rated.barred(self.left))
        return 0 < self.state <= self.grammar.detector.marked and rated.late(self.left)

    def copy(self) -> LazyMatcher:
        """Returns a copy for another sequence."""
        copy = LazyMatcher(self.grammar, self.ends, self.state)
        copy.left = self.left
        copy.inner = None if self.inner is None else self.inner.copy()
        return copy

"""A grammar after the model's reasoning, which is free text with a bounded length."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from penstock.grammar.composite import ForcedPrefixGrammar
from penstock.grammar.lazy import NEVER, TokenNeeds
from penstock.grammar.opening import BLANKS, Opening, OpeningDetector
from penstock.grammar.protocol import (
    CompiledGrammar,
    EndConditions,
    GrammarRejected,
    Ints,
    Matcher,
    Reasoning,
    clear_bits,
    set_bits,
)
from penstock.grammar.vocabulary import Vocabulary

MOST_BLANKS = 2  # tokens of blanks allowed between the reasoning and the text
SOME_BLANKS = (b"\n", b"\n\n", b" ")


class FreeTextGrammar:
    """A `CompiledGrammar`, and its `Matcher`: any text."""

    shortest = size = 0
    is_accepting = unconstrained = True
    ended = False

    def start(self, ends: EndConditions, prefix: bytes = b"") -> FreeTextGrammar:
        """Returns this object, which has no state."""
        return self

    def needed(self, prefix: bytes) -> int | None:
        """Returns 0: any text is complete."""
        return 0

    def advance(self, token: int) -> None:
        """Does nothing."""

    def fill(self, row: Ints) -> bool:
        """Allows every token."""
        row[:] = -1
        return False

    def copy(self) -> FreeTextGrammar:
        """Returns this object, which has no state."""
        return self


class ReasoningGrammar:
    """A `CompiledGrammar`: reasoning, if the model or the prompt begins it, then a text."""

    def __init__(
        self, inner: CompiledGrammar, reasoning: Reasoning, vocabulary: Vocabulary, steered: bool
    ) -> None:
        self.inner = inner
        self.reasoning = reasoning
        self.vocabulary = vocabulary
        self.detector = OpeningDetector(Opening(reasoning.close))
        self.must = not inner.start(
            EndConditions((), NEVER)
        ).is_accepting  # whether a text is required
        self.closing = self._spelt(reasoning.close)
        header = self._spelt(reasoning.header)
        if reasoning.header and not header:
            raise GrammarRejected(f"no tokens spell {reasoning.header!r}, the header of the answer")
        # What follows the reasoning.
        self.answer = ForcedPrefixGrammar(inner, header) if header else inner
        self.most_blanks = 0 if header else MOST_BLANKS
        steered = steered and inner.shortest > 0 and bool(self.closing)
        self.reserve = len(self.closing) + self.answer.shortest if steered else 0
        self.shortest = self.reserve if reasoning.started and steered else inner.shortest
        self.size = inner.size + (1 << 12)
        self._closers = [self._rated(state) for state in range(self.detector.marked)]
        special = set(vocabulary.special_tokens.values())
        # They would begin another message inside the reasoning.
        self.headings = np.array(sorted(special & set(header)), np.int32)
        self.blanks = tuple(id for text in SOME_BLANKS if (id := self._id(text)) is not None)

    def start(self, ends: EndConditions, prefix: bytes = b"") -> ReasoningMatcher:
        """Returns a matcher before the first token."""
        assert not prefix, "reasoning comes first"
        matcher = ReasoningMatcher(self, ends)
        if self.reasoning.started:
            matcher.state = 0
        else:
            matcher.seen, matcher.inner = b"", self.inner.start(ends)
        return matcher

    def needed(self, prefix: bytes) -> int | None:
        """Returns the tokens that complete the text; None for any prefix, because reasoning
        comes first."""
        return None if prefix else self.shortest

    def text(self, token: int) -> bytes:
        """Returns the text of a token; of special tokens only the marks have one."""
        if token >= self.vocabulary.size:
            return b""
        for mark in (self.reasoning.open, self.reasoning.close):
            if token == self.vocabulary.special_tokens.get(mark):
                return mark
        return self.vocabulary.tokens[token]

    def barred(self, state: int, left: int) -> Ints:
        """Returns the tokens that are not allowed in reasoning: they end it with an invalid
        continuation, or with too few tokens left."""
        return self._closers[state].barred(left)

    def opening(self, seen: bytes, left: int) -> tuple[int, ...]:
        """Returns the tokens that open the reasoning, or continue its mark after the prefix
        `seen`."""
        rest = self.reasoning.open[len(seen) :]
        parts = [(rest[:size], rest[size:]) for size in range(1, len(rest) + 1)]
        parts += [(rest + blank, b"") for blank in SOME_BLANKS]
        found = [(self._id(part), after) for part, after in parts]
        return tuple(
            token
            for token, after in found
            if token is not None and left > self.reserve + len(self._spelt(after))
        )

    def _id(self, text: bytes) -> int | None:
        """Returns the token of a text, or the special token of a mark."""
        spelt = self._spelt(text)
        return spelt[0] if len(spelt) == 1 else None

    def _spelt(self, text: bytes) -> tuple[int, ...]:
        """Returns the fewest tokens that spell a text; empty if none do."""
        return tuple(self.vocabulary.tokenization(text) or ())

    def _rated(self, state: int) -> TokenNeeds:
        followers = self.detector.followers(state, self.vocabulary)
        closing = [
            (each.token, each.rest.lstrip(BLANKS)) for each in followers if each.rest is not None
        ]
        needs = {rest: self.answer.needed(rest) for rest in {rest for _, rest in closing}}
        rated = [needs[rest] for _, rest in closing]
        return TokenNeeds(
            [token for token, _ in closing], [NEVER if need is None else need for need in rated]
        )


class ReasoningMatcher:
    """A `Matcher`: before, inside or after the reasoning."""

    def __init__(self, grammar: ReasoningGrammar, ends: EndConditions) -> None:
        self.grammar = grammar
        self.ends = ends
        self.left = ends.most
        self.used = 0  # tokens inside the reasoning
        self.seen: bytes | None = None  # before: the text so far, a prefix of the mark
        self.state: int | None = None  # inside: the detector's state
        self.inner: Matcher | None = None  # before and after: the text's matcher
        self.blanks = 0  # after: tokens of blanks still allowed before the text

    @property
    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        return not self.grammar.must if self.inner is None else self.inner.is_accepting

    @property
    def ended(self) -> bool:
        """Whether the text is over."""
        return self.inner is not None and self.inner.ended and not self.seen

    @property
    def plain(self) -> Matcher | None:
        """The text's matcher if it alone decides the mask: after the reasoning and its blanks."""
        return self.inner if self.seen is None and not self.blanks else None

    @property
    def unconstrained(self) -> bool:
        """Whether every token is allowed."""
        if self.state is None:
            return self.inner is not None and self.inner.unconstrained
        grammar = self.grammar
        barred = len(grammar.barred(self.state, self.left)) + len(grammar.headings)
        free = not (grammar.must or barred)
        return free and self._closing is None

    def advance(self, token: int) -> None:
        """Advances by one emitted token."""
        self.left -= 1
        text = self.grammar.text(token)
        if self.state is not None:
            self.used += 1
            self._advance_reasoning(text)
        elif self.seen is not None and text:
            self._decide(token, text)
        elif self.blanks and text and not text.strip(BLANKS):
            self.blanks -= 1
            self._begin(b"")
        elif self.inner is not None:
            self.blanks = 0
            self.inner.advance(token)

    def fill(self, row: Ints) -> bool:
        """Writes the mask of the next token."""
        if self.state is not None:
            self._fill_reasoning(self.state, row)
            return False
        assert self.inner is not None
        narrowed = False
        if self.seen and self.inner.ended:
            row[:] = 0  # only reasoning may follow
        else:
            narrowed = self.inner.fill(row)
        if self.seen is not None:
            set_bits(row, self.grammar.opening(self.seen, self.left))
        if self.blanks and self.left > self.grammar.answer.shortest:
            set_bits(row, self.grammar.blanks)
        return narrowed

    def copy(self) -> ReasoningMatcher:
        """Returns a copy for another sequence."""
        copy = ReasoningMatcher(self.grammar, self.ends)
        copy.left, copy.used, copy.blanks = self.left, self.used, self.blanks
        copy.seen, copy.state = self.seen, self.state
        copy.inner = None if self.inner is None else self.inner.copy()
        return copy

    @property
    def _closing(self) -> int | None:
        """The token of the closing mark that must come now: few tokens are left, or the reasoning
        has used its tokens. None: the reasoning may go on."""
        closing, place = self.grammar.closing, -1
        if self.left <= self.grammar.reserve:
            place = self.grammar.reserve - self.left
        elif self.ends.most_reasoning is not None:
            place = self.used - self.ends.most_reasoning
        return closing[min(place, len(closing) - 1)] if closing and place >= 0 else None

    def _decide(self, token: int, text: bytes) -> None:
        """Decides between reasoning and text."""
        assert self.seen is not None
        assert self.inner is not None
        mark = self.grammar.reasoning.open
        seen = (self.seen + text).lstrip(BLANKS)
        if seen.startswith(mark):
            self.seen, self.inner, self.state = None, None, 0
            self._advance_reasoning(seen[len(mark) :])
            return
        self.inner.advance(token)
        self.seen = seen if mark.startswith(seen) else None

    def _advance_reasoning(self, text: bytes) -> None:
        assert self.state is not None
        self.state, rest = self.grammar.detector.run(self.state, text)
        if rest is None:
            return
        self.state, self.blanks = None, self.grammar.most_blanks
        self._begin(rest.lstrip(BLANKS))

    def _begin(self, text: bytes) -> None:
        self.blanks *= not text
        self.inner = self.grammar.answer.start(replace(self.ends, most=self.left), text)

    def _fill_reasoning(self, state: int, row: Ints) -> None:
        grammar = self.grammar
        closing = self._closing
        if closing is not None:
            row[:] = 0
            set_bits(row, (closing,))
            return
        row[:] = -1
        clear_bits(row, grammar.barred(state, self.left))
        clear_bits(row, grammar.headings)
        if grammar.must:
            clear_bits(row, np.array(sorted(set(self.ends.tokens)), np.int32))

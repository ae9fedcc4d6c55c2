"""llguidance: grammars that are no regular language, and schema keywords that no expression keeps.

The matcher computes masks lazily, with fuel instead of a clock as its bound, so that every rank of
a group comes to the same mask. Documents of a JSON schema are completed in time: see `_Budget`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.guidance import closing
from penstock.guidance.closing import Quotes
from penstock.guidance.protocol import Ends, Ints, Refused, packed, set_bits, words
from penstock.guidance.vocabulary import Vocabulary

STRUCTURE = b'{}[]":,'
MOST_STRUCTURE = 8  # characters of STRUCTURE in a token that the masks tell apart
FEW = 24  # tokens that are tried one by one: a choice of names, say
WHITESPACE = r"[ ]?"


@dataclass(frozen=True)
class Growth:
    """By how many bytes a token may lengthen what the document still needs."""

    each: int  # for every character of STRUCTURE in it
    once: int  # for whatever else it holds
    jump: int = 0  # where few tokens are possible, and one of them begins something large
    choices: int = 0  # how many those few may be, if more than are tried one by one


@dataclass(frozen=True)
class Grammar:
    """What a worker needs to follow a grammar; made where grammars are compiled."""

    text: str  # as llguidance takes it
    growth: Growth | None  # of documents that are to be completed in time
    shortest: int  # tokens of a short whole text, as `closing` finds it; 0 if not to be completed


class Tokens:
    """A model's tokens as llguidance and `closing` need them. Immutable once made."""

    def __init__(self, tokenizer: Any, vocabulary: Vocabulary) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.bytes = closing.byte_tokenizer()
        self.words = words(vocabulary.size)
        self.own_words = words(tokenizer.vocab_size)
        self.ids: dict[bytes, int] = {}
        for token, text in enumerate(vocabulary.tokens):
            self.ids.setdefault(text, token)
        counts = np.array([sum(b in STRUCTURE for b in text) for text in vocabulary.tokens])
        self.most = int(counts.max(initial=0))
        self.upto = [packed(counts <= n, self.words) for n in range(MOST_STRUCTURE + 1)]

    def matcher(self, grammar: str) -> Any:
        """Raises Refused if the grammar is none, or too large."""
        return _matcher(self.tokenizer, grammar)


def _matcher(tokenizer: Any, grammar: str) -> Any:
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(verbose_errors=False)
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise Refused(f"the guide cannot be followed: {_first_line(matcher.get_error())}")
    return matcher


def _first_line(message: str) -> str:
    return next((line for line in message.splitlines() if line.strip()), "no reason given")[:300]


def schema_grammar(schema: str) -> str:
    """A JSON schema, with at most one space where JSON allows any number."""
    from llguidance import LLMatcher

    return str(
        LLMatcher.grammar_from_json_schema(
            schema, overrides={"whitespace_flexible": True, "whitespace_pattern": WHITESPACE}
        )
    )


def text_grammar(text: str) -> str:
    """A grammar in Lark's syntax, or in EBNF. Raises Refused."""
    from llguidance import grammar_from

    try:
        return str(grammar_from("grammar", text))
    except ValueError as error:
        raise Refused(f"the grammar cannot be read: {_first_line(str(error))}") from error


def regex_grammar(regex: str) -> str:
    """A regular expression that must match the whole text."""
    from llguidance import LLMatcher

    return str(LLMatcher.grammar_from_regex(regex))


def compiled(text: str, growth: Growth | None, tokens: Tokens) -> Grammar:
    """Checks a grammar by taking its first steps. Raises Refused."""
    matcher = tokens.matcher(text)
    matcher.compute_bitmask()
    if matcher.is_error():
        raise Refused(f"the guide cannot be followed: {_first_line(matcher.get_error())}")
    if growth is None:
        return Grammar(text, None, 0)
    found = closing.completion(_matcher(tokens.bytes, text), Quotes.OUTSIDE)
    parts = None if found is None else closing.segmented(found, tokens.vocabulary)
    if parts is None:
        raise Refused(
            f"no way was found to complete a text of this guide within {closing.MOST_BYTES} bytes: "
            "make what must come shorter; a schema can also do without (`complete` or "
            "`guided_complete`: false)"
        )
    return Grammar(text, growth, len(parts))


class EarleyGuide:
    """A `Compiled` guide."""

    def __init__(self, grammar: Grammar, tokens: Tokens) -> None:
        self.grammar = grammar
        self.tokens = tokens
        self.first = tokens.matcher(grammar.text)
        self.first_bytes = _matcher(tokens.bytes, grammar.text) if grammar.growth else None
        self.shortest = grammar.shortest
        self.size = 20 * len(grammar.text) + (1 << 16)  # as measured, about

    def start(self, ends: Ends, begun: bytes = b"") -> EarleyCursor:
        """A cursor before the first token."""
        budget = None
        if self.grammar.growth is not None and self.first_bytes is not None:
            matcher = self.first_bytes.deep_copy()
            budget = _Budget(matcher, self.grammar.growth, self.grammar.shortest)
        cursor = EarleyCursor(self, ends, self.first.deep_copy(), budget)
        cursor.begin(begun)
        return cursor

    def needed(self, begun: bytes) -> int | None:
        """Tokens that complete a text which has begun so, 0 if it is not to be completed; None if
        none does, as far as `closing` finds."""
        if closing.segmented(begun, self.tokens.vocabulary) is None:
            return None
        if self.first_bytes is None:
            return 0
        trial = self.first_bytes.deep_copy()
        if not trial.consume_tokens(list(begun)):
            return None
        found = closing.completion(trial, Quotes.OUTSIDE.after(begun))
        parts = None if found is None else closing.segmented(found, self.tokens.vocabulary)
        return None if parts is None else len(parts)


@dataclass
class _Budget:
    """What keeps a document within its tokens.

    `needed` bounds the tokens that complete it from here. Where the tokens left come near, a
    completion is searched, which gives a new bound, and only tokens are allowed that cannot
    lengthen it too much: those with few characters that open something. At last the completion
    itself is all that is allowed. Where few tokens are possible, each of them is tried.
    """

    matcher: Any  # over bytes
    growth: Growth
    needed: int
    place: Quotes = Quotes.OUTSIDE
    plan: tuple[bytes, ...] = ()  # tokens that complete the document, if known

    def advance(self, text: bytes) -> None:
        """Takes the text of an emitted token."""
        self.matcher.consume_tokens(list(text))
        self.place = self.place.after(text)
        if self.plan[:1] == (text,):
            self.plan, self.needed = self.plan[1:], self.needed - 1
            return
        structure = sum(b in STRUCTURE for b in text)
        self.plan = ()
        self.needed += structure * self.growth.each + self.growth.once

    def narrow(self, left: int, row: Ints, tokens: Tokens) -> bool:
        """Takes from `row` what might not be completed in `left` tokens; whether nothing may be
        opened any more."""
        if self._spare(left) >= tokens.most * self.growth.each + self.growth.jump:
            return False
        if not self.plan:
            self._search(left, tokens)
        spare = self._spare(left)
        if spare >= tokens.most * self.growth.each + self.growth.jump:
            return False
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        if len(allowed) <= FEW:
            return self._try_each(allowed, left, row, tokens)
        if len(allowed) <= self.growth.choices:
            spare -= max(self.growth.jump - self.growth.once, 0)
        if spare < 0:
            row[:] = 0
        else:
            row &= tokens.upto[min(spare // self.growth.each, MOST_STRUCTURE)]
        if self.plan:
            set_bits(row, (tokens.ids[self.plan[0]],))
        return spare < self.growth.each

    def _try_each(
        self, allowed: npt.NDArray[np.intp], left: int, row: Ints, tokens: Tokens
    ) -> bool:
        """Keeps the tokens after which a completion is found that fits; whether one was lost."""
        row[:] = 0
        kept = [token for token in allowed.tolist() if self._fits(token, left - 1, tokens)]
        if self.plan and not kept:
            kept = [tokens.ids[self.plan[0]]]
        set_bits(row, tuple(kept))
        return len(kept) < len(allowed)

    def _fits(self, token: int, left: int, tokens: Tokens) -> bool:
        text = tokens.vocabulary.tokens[token]
        if self.plan[:1] == (text,):
            return True
        trial = self.matcher.deep_copy()
        trial.consume_tokens(list(text))
        found = closing.completion(trial, self.place.after(text))
        parts = None if found is None else closing.segmented(found, tokens.vocabulary)
        return parts is not None and len(parts) <= left

    def _spare(self, left: int) -> int:
        """Tokens that the next one may add to what is needed, beside what any may add."""
        return left - 1 - self.needed - self.growth.once

    def _search(self, left: int, tokens: Tokens) -> None:
        found = closing.completion(self.matcher, self.place)
        parts = None if found is None else closing.segmented(found, tokens.vocabulary)
        if parts is None or len(parts) > left:
            raise Refused("the document can no longer be completed within its tokens")
        self.plan, self.needed = tuple(parts), len(parts)


class EarleyCursor:
    """A `Cursor`: a matcher that has taken the emitted tokens."""

    idle = False

    def __init__(
        self, guide: EarleyGuide, ends: Ends, matcher: Any, budget: _Budget | None
    ) -> None:
        self.guide = guide
        self.ends = ends
        self.matcher = matcher
        self.budget = budget
        self.left = ends.most
        self.ended = False

    @property
    def whole(self) -> bool:
        """Whether the text may end here."""
        return not self.ended and bool(self.matcher.is_accepting())

    def begin(self, text: bytes) -> None:
        """Takes the beginning of the text, which no token of the guide's has brought."""
        tokens = self.guide.tokens
        parts = closing.segmented(text, tokens.vocabulary)
        taken = parts is not None and all(
            self.matcher.consume_token(tokens.ids[part]) for part in parts
        )
        self.ended = not taken
        if self.budget is not None and taken:
            self.budget.advance(text)

    def advance(self, token: int) -> None:
        """Takes one emitted token."""
        self.left -= 1
        if self.ended:
            return
        vocabulary = self.guide.tokens.vocabulary
        known = token < vocabulary.size and token not in self.ends.tokens
        self.ended = not (known and self.matcher.consume_token(token))
        if self.budget is not None and not self.ended:
            self.budget.advance(vocabulary.tokens[token])

    def fill(self, row: Ints) -> bool:
        """Writes the mask of the next token."""
        tokens = self.guide.tokens
        row[:] = 0
        narrowed = False
        if not self.ended:
            mask = np.frombuffer(self.matcher.compute_bitmask(), np.int32)
            row[: len(mask)] = mask[: len(row)]
            if self.matcher.is_error():
                raise Refused(f"the guide became too complex: {self.matcher.get_error()[:200]}")
            row.view(np.uint32)[tokens.tokenizer.eos_token // 32] &= ~np.uint32(
                1 << (tokens.tokenizer.eos_token % 32)
            )
            if self.budget is not None and self.left > 0:
                narrowed = self.budget.narrow(self.left, row, tokens)
        if self.ended or self.matcher.is_accepting():
            set_bits(row, self.ends.tokens)
        return narrowed

    def copy(self) -> EarleyCursor:
        """Another sequence at the same place."""
        budget = self.budget
        if budget is not None:
            budget = replace(budget, matcher=budget.matcher.deep_copy())
        twin = EarleyCursor(self.guide, self.ends, self.matcher.deep_copy(), budget)
        twin.left, twin.ended = self.left, self.ended
        return twin

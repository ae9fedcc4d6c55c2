"""llguidance: grammars that are no regular language, and schema keywords that no expression keeps.

Its matcher computes masks lazily, as sequences come to them, and how a document ends soonest is
searched byte by byte (`python/src/grammar`).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from penstock._core import CompiledGrammar
from penstock.grammar.native import NativeGrammar
from penstock.grammar.protocol import GrammarRejected
from penstock.grammar.vocabulary import Vocabulary

WHITESPACE = r"[ ]?"
UNFOLLOWED = "the grammar cannot be followed: "  # what the extension says before llguidance's words
NO_WAY = "no way was found to complete"  # and where no short document was found


@dataclass(frozen=True)
class Growth:
    """By how many tokens one may lengthen what the document still needs."""

    each: int  # for every character in it that begins or ends something
    once: int  # for whatever else it holds
    jump: int = 0  # where few tokens are possible, and one of them begins something large
    choices: int = 0  # how many those few may be, if more than are tried one by one


@dataclass(frozen=True)
class LlguidanceGrammar:
    """What a worker needs to follow a grammar; made where grammars are compiled."""

    text: str  # as llguidance takes it
    growth: Growth | None  # of documents that are to be completed in time


def schema_grammar(schema: str) -> str:
    """A JSON schema, with at most one space where JSON allows any number."""
    from llguidance import LLMatcher

    return str(
        LLMatcher.grammar_from_json_schema(
            schema, overrides={"whitespace_flexible": True, "whitespace_pattern": WHITESPACE}
        )
    )


def text_grammar(text: str) -> str:
    """A grammar in Lark's syntax, or in EBNF. Raises GrammarRejected."""
    from llguidance import grammar_from

    try:
        return str(grammar_from("grammar", text))
    except ValueError as error:
        lines = (line for line in str(error).splitlines() if line.strip())
        reason = next(lines, "no reason given")[:300]
        raise GrammarRejected(f"the grammar cannot be read: {reason}") from error


def native_grammar(grammar: LlguidanceGrammar, vocabulary: Vocabulary) -> NativeGrammar:
    """What sequences follow. Its first steps are taken here: raises GrammarRejected if they cannot
    be, or if no way is found to complete a document."""
    growth = None if grammar.growth is None else astuple(grammar.growth)
    try:
        return NativeGrammar(CompiledGrammar.from_llguidance(vocabulary.own, grammar.text, growth))
    except ValueError as error:
        raise GrammarRejected(str(error)) from error

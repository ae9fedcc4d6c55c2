"""llguidance: context-free grammars, and schema keywords that outlines' expressions cannot enforce.

llguidance computes masks lazily, and the extension searches short completions byte by byte
(`python/src/grammar`).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from penstock._core import CompiledGrammar
from penstock.grammar.native import NativeGrammar
from penstock.grammar.protocol import GrammarRejected
from penstock.grammar.vocabulary import Vocabulary

WHITESPACE = r"[ ]?"
UNFOLLOWED = "the grammar cannot be followed: "  # the extension's prefix of llguidance's errors
NO_WAY = "no way was found to complete"  # the extension's error if it finds no completion


@dataclass(frozen=True)
class Growth:
    """Bounds of the tokens that one token may add to what the document still needs."""

    each: int  # for every structural character in the token
    once: int  # for the rest of the token
    jump: int = 0  # where few tokens are allowed and one of them begins something large
    choices: int = 0  # the maximum of those few tokens, if more than are tried one by one


@dataclass(frozen=True)
class LlguidanceGrammar:
    """The compiler's output, from which a worker builds its grammar."""

    text: str  # in llguidance's form
    growth: Growth | None  # None if documents are not completed


def schema_grammar(schema: str) -> str:
    """Returns the grammar of a JSON schema, with at most one space where JSON allows any number."""
    from llguidance import LLMatcher

    return str(
        LLMatcher.grammar_from_json_schema(
            schema, overrides={"whitespace_flexible": True, "whitespace_pattern": WHITESPACE}
        )
    )


def text_grammar(text: str) -> str:
    """Converts a grammar in Lark's syntax or EBNF. Raises GrammarRejected."""
    from llguidance import grammar_from

    try:
        return str(grammar_from("grammar", text))
    except ValueError as error:
        lines = (line for line in str(error).splitlines() if line.strip())
        reason = next(lines, "no reason given")[:300]
        raise GrammarRejected(f"the grammar cannot be read: {reason}") from error


def native_grammar(grammar: LlguidanceGrammar, vocabulary: Vocabulary) -> NativeGrammar:
    """Builds the native grammar. Raises GrammarRejected if its first mask fails, or if no way is
    found to complete a document."""
    growth = None if grammar.growth is None else astuple(grammar.growth)
    try:
        return NativeGrammar(CompiledGrammar.from_llguidance(vocabulary.own, grammar.text, growth))
    except ValueError as error:
        raise GrammarRejected(str(error)) from error

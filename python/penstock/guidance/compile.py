"""From a wanted text to what a worker follows. Runs in the process that may be killed."""

from __future__ import annotations

import json
from dataclasses import dataclass

from penstock.guidance import calls, earley, growth, schema
from penstock.guidance.automaton import Automaton, compile_regex
from penstock.guidance.earley import Grammar, Growth
from penstock.guidance.protocol import Kind, Refused, Wanted
from penstock.guidance.vocabulary import Vocabulary

MOST_REGEX = 64 << 10  # bytes
MOST_GRAMMAR = 256 << 10


@dataclass(frozen=True)
class Compiler:
    """The backends, and which one gets what (see docs/guidance.md)."""

    vocabulary: Vocabulary  # the model's

    def compile(self, wanted: Wanted) -> Automaton | Grammar:
        """Raises Refused."""
        if wanted.kind is Kind.JSON_SCHEMA:
            return self._schema(wanted)
        if wanted.kind is Kind.REGEX:
            return self._regex(wanted.text)
        if wanted.kind is Kind.CALLS:
            return self._calls(wanted)
        _check_length("grammar", wanted.text, MOST_GRAMMAR)
        return self._checked(Grammar(earley.text_grammar(wanted.text), None))

    def _schema(self, wanted: Wanted) -> Automaton | Grammar:
        parsed = schema.parse(wanted.text)
        automaton = self._automaton(schema.expression(parsed))
        if automaton is not None:
            return automaton
        parsed = schema.for_llguidance(parsed)
        grows = Growth(*growth.of_schema(parsed, self.vocabulary)) if wanted.complete else None
        return self._checked(Grammar(earley.schema_grammar(json.dumps(parsed)), grows))

    def _calls(self, wanted: Wanted) -> Automaton | Grammar:
        parsed = calls.parse(wanted.text, self.vocabulary.marks)
        automaton = self._automaton(calls.expression(parsed))
        if automaton is not None:
            return automaton
        for call in parsed.calls:
            schema.for_llguidance(call.schema)
        grows = calls.growth(parsed, self.vocabulary) if wanted.complete else None
        return self._checked(Grammar(earley.text_grammar(calls.lark(parsed)), grows))

    def _checked(self, grammar: Grammar) -> Grammar:
        earley.guide(grammar, self.vocabulary)
        return grammar

    def _automaton(self, expression: str | None) -> Automaton | None:
        """None if there is no expression, or if it has too many states: llguidance has none."""
        if expression is None:
            return None
        try:
            return compile_regex(expression, self.vocabulary)
        except Refused:
            return None

    def _regex(self, text: str) -> Automaton:
        _check_length("regular expression", text, MOST_REGEX)
        return compile_regex(text, self.vocabulary)


def _check_length(what: str, text: str, most: int) -> None:
    if not text:
        raise Refused(f"the {what} cannot be empty")
    if len(text) > most:
        raise Refused(f"the {what} has {len(text)} characters; at most {most} are possible")

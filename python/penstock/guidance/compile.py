"""From a wanted text to what a worker follows. Runs in the process that may be killed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from penstock.guidance import calls, earley, growth, refusals, schema
from penstock.guidance.automaton import Automaton, compile_regex
from penstock.guidance.earley import Grammar, Growth
from penstock.guidance.normal.emit import normal
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
        if wanted.kind is Kind.REGEX:
            return self._regex(wanted.text)
        try:
            if wanted.kind is Kind.JSON_SCHEMA:
                return self._schema(wanted)
            if wanted.kind is Kind.CALLS:
                return self._calls(wanted)
        except Refused as error:
            raise self._explained(wanted, error) from error
        _check_length("grammar", wanted.text, MOST_GRAMMAR)
        return self._checked(Grammar(earley.text_grammar(wanted.text), None))

    def _schema(self, wanted: Wanted) -> Automaton | Grammar:
        parsed = schema.parse(wanted.text)
        automaton = self._automaton(schema.expression(parsed))
        if automaton is not None:
            return automaton
        parsed = schema.for_llguidance(parsed)
        grows = Growth(*growth.of_schema(parsed, self.vocabulary)) if wanted.complete else None
        grammar = Grammar(earley.schema_grammar(json.dumps(parsed)), grows)
        return self._checked(grammar)

    def _calls(self, wanted: Wanted) -> Automaton | Grammar:
        parsed = calls.parse(wanted.text, self.vocabulary.marks)
        automaton = self._automaton(calls.expression(parsed))
        if automaton is not None:
            return automaton
        for call in parsed.calls:
            schema.for_llguidance(call.schema)
        grows = calls.growth(parsed, self.vocabulary) if wanted.complete else None
        grammar = Grammar(earley.text_grammar(calls.lark(parsed)), grows)
        return self._checked(grammar)

    def _checked(self, grammar: Grammar) -> Grammar:
        earley.guide(grammar, self.vocabulary)
        return grammar

    def _explained(self, wanted: Wanted, error: Refused) -> Refused:
        """The same in words that say where and what to do, if a backend's words do not."""
        words = (refusals.UNSATISFIABLE, earley.UNFOLLOWED, earley.NO_WAY)
        if not any(one in str(error) for one in words):
            return error
        for said, one in _schemas(wanted).items():
            reason = self._refusal(one)
            if reason is not None:
                return Refused(said + refusals.told(one, reason, self._refusal))
        return error

    def _refusal(self, one: Any) -> str | None:
        """Why a schema cannot be followed, in llguidance's words if it has some; None if it can."""
        try:
            made = schema.for_llguidance(normal(one))
            if growth.endless(made):
                return refusals.ENDLESS
        except Refused as error:
            if str(error) != refusals.UNSATISFIABLE:
                return str(error)
            said = self._said(one) if isinstance(one, dict) else None
            return said if said is not None and "nsatisfiable" in said else str(error)
        return self._said(made)

    def _said(self, one: Any) -> str | None:
        """What llguidance says of a schema that it cannot follow."""
        try:
            earley.guide(Grammar(earley.schema_grammar(json.dumps(one)), None), self.vocabulary)
        except Refused as error:
            return str(error).removeprefix(earley.UNFOLLOWED)
        return None

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


def _schemas(wanted: Wanted) -> dict[str, Any]:
    """Those of a text, as they were sent, each by what is said before why it is refused."""
    try:
        read = json.loads(wanted.text)
        if wanted.kind is Kind.JSON_SCHEMA:
            return {"": read}
        return {
            f"the parameters of `{call['name']}`: ": {**call["schema"], "type": "object"}
            for call in read["calls"]
        }
    except (ValueError, RecursionError, KeyError, TypeError):
        return {}


def _check_length(what: str, text: str, most: int) -> None:
    if not text:
        raise Refused(f"the {what} cannot be empty")
    if len(text) > most:
        raise Refused(f"the {what} has {len(text)} characters; at most {most} are possible")

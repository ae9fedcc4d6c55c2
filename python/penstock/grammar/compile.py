"""Compiles grammar specs. Runs in a child process that may be killed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from penstock.grammar import growth, llguidance_backend, rejections, schema, tool_calls
from penstock.grammar.automaton import Automaton, compile_regex
from penstock.grammar.json_schema.emit import normalize
from penstock.grammar.llguidance_backend import Growth, LlguidanceGrammar
from penstock.grammar.protocol import GrammarKind, GrammarRejected, GrammarSpec
from penstock.grammar.vocabulary import Vocabulary

MOST_REGEX = 64 << 10  # bytes
MOST_GRAMMAR = 256 << 10


@dataclass(frozen=True)
class Compiler:
    """Chooses the backend of each grammar (see docs/structured_output.md)."""

    vocabulary: Vocabulary

    def compile(self, spec: GrammarSpec) -> Automaton | LlguidanceGrammar:
        """Compiles a grammar. Raises GrammarRejected."""
        if spec.kind is GrammarKind.REGEX:
            return self._regex(spec.text)
        try:
            if spec.kind is GrammarKind.JSON_SCHEMA:
                return self._schema(spec)
            if spec.kind is GrammarKind.CALLS:
                return self._calls(spec)
        except GrammarRejected as error:
            raise self._explain(spec, error) from error
        _check_length("grammar", spec.text, MOST_GRAMMAR)
        return self._checked(LlguidanceGrammar(llguidance_backend.text_grammar(spec.text), None))

    def _schema(self, spec: GrammarSpec) -> Automaton | LlguidanceGrammar:
        parsed = schema.parse(spec.text)
        automaton = self._automaton(schema.expression(parsed))
        if automaton is not None:
            return automaton
        parsed = schema.for_llguidance(parsed)
        grows = Growth(*growth.schema_growth(parsed, self.vocabulary)) if spec.complete else None
        grammar = LlguidanceGrammar(llguidance_backend.schema_grammar(json.dumps(parsed)), grows)
        return self._checked(grammar)

    def _calls(self, spec: GrammarSpec) -> Automaton | LlguidanceGrammar:
        parsed = tool_calls.parse(spec.text, self.vocabulary.special_tokens)
        automaton = self._automaton(tool_calls.expression(parsed))
        if automaton is not None:
            return automaton
        for call in parsed.calls:
            schema.for_llguidance(call.schema)
        grows = tool_calls.growth(parsed, self.vocabulary) if spec.complete else None
        grammar = LlguidanceGrammar(llguidance_backend.text_grammar(tool_calls.lark(parsed)), grows)
        return self._checked(grammar)

    def _checked(self, grammar: LlguidanceGrammar) -> LlguidanceGrammar:
        llguidance_backend.native_grammar(grammar, self.vocabulary)
        return grammar

    def _explain(self, spec: GrammarSpec, error: GrammarRejected) -> GrammarRejected:
        """Returns an error with the place and a remedy if a backend's error has none."""
        words = (rejections.UNSATISFIABLE, llguidance_backend.UNFOLLOWED, llguidance_backend.NO_WAY)
        if not any(one in str(error) for one in words):
            return error
        for said, one in _schemas(spec).items():
            reason = self._rejection(one)
            if reason is not None:
                return GrammarRejected(said + rejections.explain(one, reason, self._rejection))
        return error

    def _rejection(self, one: Any) -> str | None:
        """Returns the reason why a schema is rejected, in llguidance's words if it has some;
        None if it is accepted."""
        try:
            made = schema.for_llguidance(normalize(one))
            if growth.is_endless(made):
                return rejections.ENDLESS
        except GrammarRejected as error:
            if str(error) != rejections.UNSATISFIABLE:
                return str(error)
            said = self._llguidance_error(one) if isinstance(one, dict) else None
            return said if said is not None and "nsatisfiable" in said else str(error)
        return self._llguidance_error(made)

    def _llguidance_error(self, one: Any) -> str | None:
        """Returns llguidance's error for a schema; None if it accepts the schema."""
        try:
            llguidance_backend.native_grammar(
                LlguidanceGrammar(llguidance_backend.schema_grammar(json.dumps(one)), None),
                self.vocabulary,
            )
        except GrammarRejected as error:
            return str(error).removeprefix(llguidance_backend.UNFOLLOWED)
        return None

    def _automaton(self, expression: str | None) -> Automaton | None:
        """Returns None if there is no expression, or if its automaton has too many states:
        llguidance has no such limit."""
        if expression is None:
            return None
        try:
            return compile_regex(expression, self.vocabulary)
        except GrammarRejected:
            return None

    def _regex(self, text: str) -> Automaton:
        _check_length("regular expression", text, MOST_REGEX)
        return compile_regex(text, self.vocabulary)


def _schemas(spec: GrammarSpec) -> dict[str, Any]:
    """Returns the schemas of a spec as they were sent, by the prefix of their error message."""
    try:
        read = json.loads(spec.text)
        if spec.kind is GrammarKind.JSON_SCHEMA:
            return {"": read}
        return {
            f"the parameters of `{call['name']}`: ": {**call["schema"], "type": "object"}
            for call in read["calls"]
        }
    except (ValueError, RecursionError, KeyError, TypeError):
        return {}


def _check_length(what: str, text: str, most: int) -> None:
    if not text:
        raise GrammarRejected(f"the {what} cannot be empty")
    if len(text) > most:
        raise GrammarRejected(f"the {what} has {len(text)} characters; at most {most} are possible")

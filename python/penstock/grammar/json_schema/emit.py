"""Converts alternatives back to a schema, in the keywords that the backends enforce."""

from __future__ import annotations

import json
import sys
from functools import cache
from typing import Any

from penstock.grammar.json_schema.arrays import Arrays
from penstock.grammar.json_schema.expander import CircularReference, Expander
from penstock.grammar.json_schema.keywords import ASSERTIONS
from penstock.grammar.json_schema.objects import Objects
from penstock.grammar.json_schema.rules import (
    ANY,
    ArrayRule,
    Conjunction,
    Literal,
    NumberRule,
    ObjectRule,
    Rule,
    StringRule,
)
from penstock.grammar.json_schema.scalars import exact, number, string
from penstock.grammar.json_schema.unsupported import LocatedUnsupportedKeyword, UnsupportedKeyword
from penstock.grammar.protocol import GrammarRejected

MOST_PARTS = 5000
MOST_TRIES = 40
MOST_FRAMES = 12_000
PLAIN = {"type"}


def normalize(schema: Any) -> Any:
    """Returns a schema in the backends' keywords. Every document valid under it is valid under
    `schema`. Raises GrammarRejected."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, MOST_FRAMES))
    try:
        return _normalize(Expander(schema))
    except RecursionError as error:
        raise GrammarRejected("the schema is nested too deep") from error
    finally:
        sys.setrecursionlimit(limit)


def _normalize(expander: Expander) -> Any:
    gone: dict[Conjunction, str] = {}
    for _ in range(MOST_TRIES):
        emitter = Emitter(expander, gone)
        try:
            root = emitter.schema_of(expander.root)
        except UnsupportedKeyword as error:
            if emitter.stale:
                continue
            raise GrammarRejected(str(error)) from error
        if not emitter.stale:
            if root is False:
                raise GrammarRejected("no document satisfies the schema")
            return _assembled(emitter.parts, root)
    raise GrammarRejected("the schema is too complex: it refers to itself in too many ways")


class Emitter:
    """Emits the parts of one schema. A part is a conjunction that several places may refer to."""

    def __init__(self, expander: Expander, gone: dict[Conjunction, str]) -> None:
        self.expander = expander
        self.gone = gone  # conjunctions that cannot be expressed, with the reason
        self.parts: dict[str, Any] = {}
        self.stale = False  # an emitted reference leads to such a conjunction
        self._numbers: dict[Conjunction, str] = {}
        self._busy: set[Conjunction] = set()
        self._looped: set[Conjunction] = set()
        self._arrays = Arrays(self)
        self._objects = Objects(self)

    def schema_of(self, conj: Conjunction) -> Any:
        """Returns the schema of a conjunction: a boolean, or a reference. Raises
        UnsupportedKeyword if it cannot be expressed although a value may be valid."""
        conj = self._simple(conj)
        if conj in self.gone:
            raise LocatedUnsupportedKeyword(self.gone[conj])
        if conj not in self._numbers:
            if len(self._numbers) >= MOST_PARTS:
                raise GrammarRejected(f"the schema has more than {MOST_PARTS} parts")
            self._numbers[conj] = str(len(self._numbers))
            self._busy.add(conj)
            try:
                self.parts[self._numbers[conj]] = self._made(conj)
            except UnsupportedKeyword as error:
                self.gone[conj] = str(error)
                self.stale |= conj in self._looped
                del self._numbers[conj]
                raise
            finally:
                self._busy.discard(conj)
        elif conj in self._busy:
            self._looped.add(conj)
        name = self._numbers[conj]
        made = self.parts.get(name)
        return made if isinstance(made, bool) else {"$ref": f"#/$defs/{name}"}

    def _simple(self, conj: Conjunction) -> Conjunction:
        """Resolves literals that are only references, and drops those without assertions."""
        found: set[Literal] = set()
        for literal in conj:
            contents = self.expander.node(literal[0]).contents
            passed = {literal}
            while literal[1] and self._leads(literal[0]):
                literal = (
                    self.expander.reader.target(self.expander.node(literal[0]), "$ref"),
                    True,
                )
                if literal in passed:
                    raise self._circle(literal)
                passed.add(literal)
            contents = self.expander.node(literal[0]).contents
            plain = isinstance(contents, dict) and not ASSERTIONS.intersection(contents)
            if not (literal[1] and (contents is True or plain)):
                found.add(literal)
        return frozenset(found)

    def _leads(self, number: int) -> bool:
        """Whether a node is only a reference to another one."""
        node = self.expander.node(number)
        if isinstance(node.contents, bool) or "$ref" not in node.contents:
            return False
        return node.old or ASSERTIONS.intersection(node.contents) == {"$ref"}

    def _circle(self, literal: Literal) -> GrammarRejected:
        place = self.expander.node(literal[0]).place
        return GrammarRejected(
            f"the schema at `{place}` refers to itself without a member or an item in between"
        )

    def _made(self, conj: Conjunction) -> Any:
        try:
            form = self.expander.form(conj)
        except CircularReference as error:
            raise self._circle(min(conj)) from error
        if {name: rules for name, rules in form.rules.items()} == {n: (r,) for n, r in ANY.items()}:
            return True
        found, reasons = [], list(form.unsupported.values())
        for name, rules in form.rules.items():
            for rule in rules:
                try:
                    found += self._schemas(name, rule)
                except UnsupportedKeyword as error:
                    reasons.append(self._said(error, conj))
        if found:
            return _joined(found)
        if reasons:
            raise LocatedUnsupportedKeyword(reasons[0])
        return False

    def _said(self, error: UnsupportedKeyword, conj: Conjunction) -> str:
        """Returns the error's message with the place of the keyword."""
        if isinstance(error, LocatedUnsupportedKeyword):
            return str(error)
        nodes = [self.expander.node(number) for number, _ in sorted(conj)]
        named = [n for n in nodes if isinstance(n.contents, dict) and error.keyword in n.contents]
        place = (named or nodes)[0].place
        return f"the schema keyword `{error.keyword}` (in `{place}`) is not supported {error.what}"

    def _schemas(self, kind: str, rule: Rule) -> list[dict[str, Any]]:
        if rule.values is not None:
            return _listed(kind, rule)
        if isinstance(rule, NumberRule):
            found = number(rule)
            if not found:
                raise UnsupportedKeyword("not", "for all integers, or for too many numbers")
            return found
        if isinstance(rule, StringRule):
            schema = string(rule)
            if schema is None:
                raise UnsupportedKeyword("not", "for this `pattern`")
            return [schema]
        if isinstance(rule, ArrayRule):
            return self._arrays.schemas(rule)
        if isinstance(rule, ObjectRule):
            return self._objects.schemas(rule)
        return [{"type": kind}]

    @cache  # noqa: B019
    def disjoint(self, one: str, other: str) -> bool:
        """Returns whether no name matches both patterns."""
        from llguidance import LLMatcher

        schema = {"type": "object", "patternProperties": {one: {}, other: {}}}
        return not _grammar_error(LLMatcher, json.dumps(schema))


def _grammar_error(matcher: Any, schema: str) -> str:
    return str(matcher.validate_grammar(matcher.grammar_from_json_schema(schema)))


def _listed(kind: str, rule: Rule) -> list[dict[str, Any]]:
    values = list(rule.values or ())
    if kind == "boolean" and len(values) == 2:
        return [{"type": "boolean"}]
    kept = [value for value in values if exact(value)]
    if values and not kept:
        raise UnsupportedKeyword("enum", "for integers beyond 2 ** 53")
    return [{"enum": kept}] if kept else []


def _joined(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the union of schemas."""
    types = [each["type"] for each in schemas if each.keys() == PLAIN]
    values = [value for each in schemas if each.keys() == {"enum"} for value in each["enum"]]
    found: list[dict[str, Any]] = []
    if values:
        found.append({"enum": values})
    if types:
        types = list(dict.fromkeys(types))
        found.append({"type": types if len(types) > 1 else types[0]})
    for each in schemas:
        if each.keys() != PLAIN and each.keys() != {"enum"} and each not in found:
            found.append(each)
    return found[0] if len(found) == 1 else {"anyOf": found}


def _assembled(parts: dict[str, Any], root: Any) -> Any:
    """Assembles the parts into one schema; a part with one use is inlined."""
    if isinstance(root, bool):
        return {}
    uses = _uses(parts, root)
    looped = _looped(parts)
    kept = {
        name
        for name, part in parts.items()
        if isinstance(part, dict) and (name in looped or (uses.get(name, 0) > 1 and _large(part)))
    }
    made = _Inlined(parts, kept)
    whole = made.inline(root)
    named = {name: made.inline(parts[name]) for name in sorted(made.reached(whole), key=int)}
    return {**whole, "$defs": named} if named else whole


def _name(node: Any) -> str | None:
    reference = node.get("$ref") if isinstance(node, dict) and len(node) == 1 else None
    return reference.rpartition("/")[2] if isinstance(reference, str) else None


class _Inlined:
    """Inlines parts where they are referenced, except for those in `kept`."""

    def __init__(self, parts: dict[str, Any], kept: set[str]) -> None:
        self.parts = parts
        self.kept = kept
        self._made: dict[str, Any] = {}

    def inline(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.inline(each) for each in node]
        if not isinstance(node, dict):
            return node
        name = _name(node)
        if name is None:
            return {
                key: value if key in ("enum", "required") else self._below(key, value)
                for key, value in node.items()
            }
        if name in self.kept:
            return node
        if name not in self._made:
            self._made[name] = self.inline(self.parts[name])
        return self._made[name]

    def _below(self, key: str, value: Any) -> Any:
        if key in ("properties", "patternProperties"):
            return {name: self.inline(each) for name, each in value.items()}
        return self.inline(value)

    def reached(self, root: Any) -> set[str]:
        """Returns the names of the kept parts that are used."""
        found: set[str] = set()
        waiting = [root]
        while waiting:
            for name in _references(waiting.pop()):
                if name not in found:
                    found.add(name)
                    waiting.append(self.inline(self.parts[name]))
        return found


def _references(node: Any) -> list[str]:
    """Returns the names referenced in a schema, with repetitions."""
    found, waiting = [], [node]
    while waiting:
        each = waiting.pop()
        name = _name(each)
        if name is not None:
            found.append(name)
        elif isinstance(each, dict):
            for key, value in each.items():
                if key in ("properties", "patternProperties"):
                    waiting += value.values()
                elif key not in ("enum", "required"):
                    waiting.append(value)
        elif isinstance(each, list):
            waiting += each
    return found


def _uses(parts: dict[str, Any], root: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in (root, *parts.values()):
        for name in _references(part):
            found[name] = found.get(name, 0) + 1
    return found


def _looped(parts: dict[str, Any]) -> set[str]:
    """Returns the recursive parts: targets of back edges in a depth-first search."""
    edges = {name: _references(part) for name, part in parts.items()}
    state: dict[str, int] = {}
    found: set[str] = set()
    for start in parts:
        stack = [(start, iter(edges[start]))] if start not in state else []
        state.setdefault(start, 1)
        while stack:
            name, rest = stack[-1]
            after = next(rest, None)
            if after is None:
                state[name] = 2
                stack.pop()
            elif state.get(after) == 1:
                found.add(after)
            elif after not in state:
                state[after] = 1
                stack.append((after, iter(edges.get(after, []))))
    return found


def _large(part: dict[str, Any]) -> bool:
    return any(
        key in part for key in ("properties", "patternProperties", "anyOf", "prefixItems")
    ) or (len(part.get("enum", ())) > 4 or isinstance(part.get("items"), dict))

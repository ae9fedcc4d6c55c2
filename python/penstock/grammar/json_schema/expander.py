"""Expands literals to alternatives, and decides which values and combinations satisfy them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from penstock.grammar.formats import PATTERNS
from penstock.grammar.json_schema import negative, positive
from penstock.grammar.json_schema.forms import EVERY, Form, bounded
from penstock.grammar.json_schema.nodes import Node, Reader
from penstock.grammar.json_schema.rules import (
    ANYTHING,
    ArrayRule,
    Conjunction,
    Literal,
    NumberRule,
    ObjectRule,
    Rule,
    SomeMember,
    StringRule,
    key,
    kind,
)
from penstock.grammar.protocol import GrammarRejected

MOST_WORK = 100_000  # pairs of rules that are combined


class CircularReference(Exception):
    """The requested form is still being computed."""


class Expander:
    """The alternatives of one schema's parts."""

    def __init__(self, root: Any) -> None:
        self.reader = Reader(root)
        self.root: Conjunction = frozenset(((self.reader.root, True),))
        self.never = self.holding(self.reader.made(self.reader.nodes[0], False, "false"))
        self._forms: dict[Literal, Form] = {}
        self._joined: dict[Conjunction, Form] = {ANYTHING: EVERY}
        self._empty: dict[Conjunction, bool] = {}
        self._busy: set[Literal] = set()
        self._work = 0

    def holding(self, number: int, positive: bool = True) -> Conjunction:
        """Returns the conjunction that a node holds, or does not."""
        return frozenset(((number, positive),))

    def node(self, number: int) -> Node:
        return self.reader.nodes[number]

    def form(self, conj: Conjunction) -> Form:
        """Returns the alternatives of a conjunction. Raises GrammarRejected, and
        CircularReference in a cycle."""
        found = self._joined.get(conj)
        if found is None:
            found = EVERY
            for literal in sorted(conj):
                found = self.product(found, self.literal_form(literal))
            self._joined[conj] = found
        return found

    def literal_form(self, literal: Literal) -> Form:
        """Returns the alternatives of a literal."""
        found = self._forms.get(literal)
        if found is None:
            if literal in self._busy:
                raise CircularReference
            self._busy.add(literal)
            try:
                number, holds = literal
                make = positive.form if holds else negative.form
                found = make(self, self.node(number))
            finally:
                self._busy.discard(literal)
            self._forms[literal] = found
        return found

    def empty(self, conj: Conjunction) -> bool:
        """Returns whether certainly no value satisfies a conjunction."""
        found = self._empty.get(conj)
        if found is None:
            try:
                found = self.form(conj).empty
            except CircularReference:
                return False
            self._empty[conj] = found
        return found

    def product(self, one: Form, other: Form) -> Form:
        """Returns the intersection of two forms."""
        if one is EVERY:
            return other
        if other is EVERY:
            return one
        rules: dict[str, list[Rule]] = {}
        gone: dict[str, str] = {}
        for name in one.rules.keys() & other.rules.keys():
            found = [self.meet(a, b) for a in one.rules[name] for b in other.rules[name]]
            if any(rule is None for rule in found):
                gone[name] = "a value of `enum` or `const` could not be checked"
            rules[name] = [each for each in found if each is not None and self._possible(each)]
        for a, b in ((one, other), (other, one)):
            for name, reason in a.unsupported.items():
                if name in b.rules or name in b.unsupported:
                    gone[name] = reason
        return bounded({name: rules[name] for name in EVERY.rules if name in rules}, gone)

    def meet(self, one: Rule, other: Rule) -> Rule | None:
        """Returns the conjunction of two rules of one kind; None if it cannot be decided."""
        self._work += 1
        if self._work > MOST_WORK:
            raise GrammarRejected(
                "the schema has too many alternatives that multiply: use fewer of `anyOf`, "
                "`oneOf`, `if` and `not` beside each other"
            )
        merged: Rule = one.meet(other)
        if one.values is None and other.values is None:
            return merged
        values, rule = (one.values, other) if one.values is not None else (other.values, one)
        kept = [(value, self.accepts(rule, value)) for value in values or ()]
        if any(verdict is None for _, verdict in kept) and not any(verdict for _, verdict in kept):
            return None
        listed: Rule = merged.listing(tuple(value for value, verdict in kept if verdict))
        return listed

    def _possible(self, rule: Rule) -> bool:
        if rule.void():
            return False
        if rule.values is not None:
            return True
        if isinstance(rule, ObjectRule):
            return not any(self.empty(self.member(rule, name, True)) for name in rule.required)
        if isinstance(rule, ArrayRule):
            places = range(min(rule.least, len(rule.first) + 1))
            return not any(self.empty(rule.item(place)) for place in places)
        return True

    def member(self, rule: ObjectRule, name: str, unsure: bool = False) -> Conjunction:
        """Returns the conjunction for a member. If it is unknown whether a pattern matches the
        name, both cases must hold."""
        conj = rule.members.get(name, ANYTHING)
        for pattern, more in rule.matching.items():
            if search(pattern, name) is not False:
                conj |= more
        for rest in rule.rests:
            if name not in rest.names and not any(search(p, name) for p in rest.patterns):
                conj |= rest.conj
        verdict = self.holds(rule.names, name)
        if verdict is False or (verdict is None and not unsure):
            conj |= self.never
        return conj

    def holds(self, conj: Conjunction, value: Any) -> bool | None:
        """Returns whether a value satisfies a conjunction; None if that cannot be decided."""
        try:
            form = self.form(conj)
        except CircularReference:
            return None
        verdict = [self.accepts(rule, value) for rule in form.rules.get(kind(value), ())]
        if any(verdict):
            return True
        return None if None in verdict or kind(value) in form.unsupported else False

    def accepts(self, rule: Rule, value: Any) -> bool | None:
        """Returns whether a value of its kind satisfies a rule; None if that cannot be decided."""
        if any(key(value) == key(other) for other in rule.excluded):
            return False
        if rule.values is not None:
            return any(key(value) == key(other) for other in rule.values)
        if isinstance(rule, NumberRule):
            return rule.holds(value)
        if isinstance(rule, StringRule):
            return _is_text(rule, value)
        if isinstance(rule, ArrayRule):
            return self._is_array(rule, value)
        return self._is_object(rule, value) if isinstance(rule, ObjectRule) else True

    def _is_array(self, rule: ArrayRule, value: list[Any]) -> bool | None:
        if not rule.least <= len(value) <= rule.most:
            return False
        if rule.unique and len({key(each) for each in value}) < len(value):
            return False
        verdict = [self.holds(rule.item(place), each) for place, each in enumerate(value)]
        for contains in rule.contains:
            count = [self.holds(contains.conj, each) for each in value]
            sure, most = count.count(True), len(count) - count.count(False)
            if most < contains.least or sure > contains.most:
                return False
            verdict.append(None if sure < contains.least or most > contains.most else True)
        return _all(verdict)

    def _is_object(self, rule: ObjectRule, value: dict[str, Any]) -> bool | None:
        if not rule.least <= len(value) <= rule.most or not value.keys() >= set(rule.required):
            return False
        verdict = [self.holds(self.member(rule, name), each) for name, each in value.items()]
        for some in rule.some:
            may = [self.holds(some.conj, each) for n, each in value.items() if concerns(some, n)]
            verdict.append(True if True in may else (None if None in may else False))
        return _all(verdict)


def concerns(some: SomeMember, name: str) -> bool:
    """Returns whether a member with this name may be the required one."""
    if some.rest is None:
        return some.pattern is not None and search(some.pattern, name) is True
    patterns = [search(pattern, name) for pattern in some.rest.patterns]
    return name not in some.rest.names and not any(verdict is not False for verdict in patterns)


def _all(verdict: list[bool | None]) -> bool | None:
    if False in verdict:
        return False
    return None if None in verdict else True


def _is_text(rule: StringRule, value: str) -> bool | None:
    if not rule.least <= len(value) <= rule.most:
        return False
    verdict = [search(pattern, value) for pattern in rule.patterns]
    verdict += [search(PATTERNS[form], value) for form in rule.formats if form in PATTERNS]
    for pattern in rule.unmatched:
        found = search(pattern, value)
        verdict.append(None if found is None else not found)
    return _all(verdict)


@lru_cache(maxsize=10_000)
def search(pattern: str, text: str) -> bool | None:
    """Returns whether a pattern is found in a text; None if Python's `re` cannot decide it."""
    try:
        return re.search(pattern, text) is not None
    except (re.error, RecursionError, OverflowError):
        return None

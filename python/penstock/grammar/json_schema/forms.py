"""Alternatives of a schema: per kind of value, rules; a valid value satisfies at least one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from penstock.grammar.json_schema.rules import ANY, EvaluatedMembers, Rule, without

MOST_RULES = 96  # per kind, after alternatives multiply
MANY = (
    f"the schema has more than {MOST_RULES} alternatives for one value, and none of the first fits"
)


@dataclass(frozen=True)
class Form:
    """Alternatives of a schema. `rules`: by kind. `unsupported`: by kind, the reason why more
    values may be valid than the rules express."""

    rules: dict[str, tuple[Rule, ...]]
    unsupported: dict[str, str]

    @property
    def empty(self) -> bool:
        """Whether certainly no value is valid."""
        return not self.rules and not self.unsupported


NONE = Form({}, {})
EVERY = Form({kind: (rule,) for kind, rule in ANY.items()}, {})


def only(kind: str, *rules: Rule) -> Form:
    """Returns the form of values of one kind."""
    return Form({kind: rules}, {})


def besides(*kinds: str) -> Form:
    """Returns the form of values of all other kinds."""
    return Form({kind: (rule,) for kind, rule in ANY.items() if kind not in kinds}, {})


def unsupported(kind: str, reason: str) -> Form:
    """Returns the form of a kind whose valid values no rule expresses."""
    return Form({}, {kind: reason})


def where(kind: str, rule: Rule) -> Form:
    """Returns the form of all values, with a rule for one kind."""
    return Form({**EVERY.rules, kind: (rule,)}, {})


def union(forms: Iterable[Form]) -> Form:
    """Returns the union of forms."""
    rules: dict[str, list[Rule]] = {}
    gone: dict[str, str] = {}
    for form in forms:
        for kind, more in form.rules.items():
            rules.setdefault(kind, []).extend(more)
        for kind, reason in form.unsupported.items():
            gone.setdefault(kind, reason)
    return bounded({kind: _joined(kind, found) for kind, found in rules.items()}, gone)


def bounded(rules: dict[str, list[Rule]], gone: dict[str, str]) -> Form:
    """Returns a form with at most MOST_RULES rules per kind."""
    for kind, found in rules.items():
        if len(found) > MOST_RULES:
            gone.setdefault(kind, MANY)
    return Form({kind: tuple(found[:MOST_RULES]) for kind, found in rules.items() if found}, gone)


def unseen(form: Form) -> Form:
    """Returns a form that has evaluated no members and items, for `unevaluatedItems` and
    `unevaluatedProperties`."""
    rules = dict(form.rules)
    for kind, blank in (("array", 0), ("object", EvaluatedMembers())):
        if kind in rules:
            rules[kind] = tuple(replace(rule, seen=blank) for rule in rules[kind])  # type: ignore[call-arg]
    return Form(rules, form.unsupported)


def first(form: Form, most: int) -> Form:
    """Returns a form with the first `most` rules per kind."""
    gone = dict(form.unsupported)
    for kind, rules in form.rules.items():
        if len(rules) > most:
            gone.setdefault(kind, MANY)
    return Form({kind: rules[:most] for kind, rules in form.rules.items()}, gone)


def _joined(kind: str, rules: list[Rule]) -> list[Rule]:
    """Removes duplicate rules, and merges rules that list values."""
    if ANY[kind] in rules:
        return [ANY[kind]]
    found: list[Rule] = []
    listed: list[tuple[Rule, list[Any]]] = []  # (the rule without its values, the merged values)
    for rule in rules:
        if rule.values is None:
            if rule not in found:
                found.append(rule)
            continue
        blank = rule.listing(())
        values = next((values for each, values in listed if each == blank), None)
        if values is None:
            listed.append((blank, values := []))
        values += rule.values
    return [*(blank.listing(without(values, ())) for blank, values in listed), *found]

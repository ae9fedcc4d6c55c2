"""Converts rules of arrays to schemas."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Any

from penstock.grammar.json_schema.rules import UNBOUNDED, ArrayRule, Conjunction, Contains, without
from penstock.grammar.json_schema.unsupported import UnsupportedKeyword

if TYPE_CHECKING:
    from penstock.grammar.json_schema.emit import Emitter

MOST_PLACES = 64  # items with rules of their own
MOST_SETS = 64  # sets of values that are listed


class Arrays:
    """The conversion of one schema's array rules."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self.expander = emitter.expander

    def schemas(self, rule: ArrayRule) -> list[dict[str, Any]]:
        """Returns alternative schemas of a rule; their union is at most the rule, and often
        less."""
        if rule.excluded:
            return self._excluding(rule)
        for contains in rule.contains:
            placed = self._placed(rule, contains)
            if placed is None or placed.least > placed.most:
                raise UnsupportedKeyword("contains", "together with the other rules of the items")
            rule = placed
        if rule.unique:
            return [schema for part in self._unique(rule) for schema in self._plain(part)]
        return self._plain(rule)

    def _excluding(self, rule: ArrayRule) -> list[dict[str, Any]]:
        """Returns arrays of other lengths than the excluded values."""
        lengths = sorted({len(value) for value in rule.excluded})
        found, least = [], rule.least
        for length in lengths:
            found += self._within(rule, least, min(rule.most, length - 1))
            least = max(least, length + 1)
        return found + self._within(rule, least, rule.most)

    def _within(self, rule: ArrayRule, least: int, most: int) -> list[dict[str, Any]]:
        if least > most:
            return []
        return self.schemas(replace(rule, least=least, most=most, excluded=()))

    def _placed(self, rule: ArrayRule, contains: Contains) -> ArrayRule | None:
        """Applies `contains` to the first items that may satisfy it, as many as required. With a
        maximum, no further items are allowed."""
        first = list(rule.first)
        others = self.expander
        missing, place = contains.least, 0
        while missing and place < min(rule.most, MOST_PLACES):
            if place == len(first):
                first.append(rule.rest)
            if not others.empty(first[place] | contains.conj):
                first[place] |= contains.conj
                missing -= 1
            elif place >= len(rule.first):
                return None
            place += 1
        if missing:
            return None
        rule = replace(rule, first=tuple(first), least=max(rule.least, place), contains=())
        if contains.most < UNBOUNDED:  # at most as many items as may satisfy it
            return replace(rule, most=min(rule.most, contains.most))
        return rule

    def _plain(self, rule: ArrayRule) -> list[dict[str, Any]]:
        if rule.values is not None:
            return [{"enum": list(rule.values)}]
        most, schemas = rule.most, list[Any]()
        for place, conj in enumerate(rule.first[: min(most, len(rule.first))]):
            schema = self.emitter.schema_of(conj)
            if schema is False:
                most = place
                break
            schemas.append(schema)
        rest = self.emitter.schema_of(rule.rest) if most > len(schemas) else False
        if rest is False:
            most = min(most, len(schemas))
        if most < rule.least:
            return []
        found: dict[str, Any] = {"type": "array"}
        if schemas:
            found["prefixItems"] = schemas
        if rest is not True:
            found["items"] = rest
        if rule.least:
            found["minItems"] = rule.least
        if most < UNBOUNDED:
            found["maxItems"] = most
        return [found]

    def _unique(self, rule: ArrayRule) -> list[ArrayRule]:
        """Returns rules of arrays with distinct items: items of disjoint rules, or at most one
        item."""
        if rule.most <= 1:
            return [rule]
        if len(rule.first) <= 1:
            values = self._values(rule)
            if values is not None:
                return self._subsets(rule, values)
        if rule.least <= 1:
            return [replace(rule, most=1)]
        apart = self._apart(rule)
        if apart is None:
            raise UnsupportedKeyword(
                "uniqueItems", "where two or more items are required that may be equal"
            )
        return [apart]

    def _apart(self, rule: ArrayRule) -> ArrayRule | None:
        """Returns the rule with the minimum number of items if items at different places are
        never equal."""
        conjs = [rule.item(place) for place in range(min(rule.least, MOST_PLACES + 1))]
        if len(conjs) > 8:
            return None
        for one, other in combinations(conjs, 2):
            if not self.expander.empty(one | other):
                return None
        return replace(rule, most=rule.least)

    def _values(self, rule: ArrayRule) -> list[Any] | None:
        """Returns the possible values of items if they are a finite list."""
        form = self.expander.form(rule.rest)
        if form.unsupported or rule.first:
            return None
        found: list[Any] = []
        for name, rules in form.rules.items():
            for each in rules:
                if name == "null":
                    found.append(None)
                elif each.values is None:
                    return None
                else:
                    found += each.values
        return list(without(found, ()))

    def _subsets(self, rule: ArrayRule, values: list[Any]) -> list[ArrayRule]:
        """Returns all sets of few values. For more values, each item gets its own part of them."""
        sizes = range(rule.least, min(rule.most, len(values)) + 1)
        total = sum(comb(len(values), size) for size in sizes)
        if total <= MOST_SETS:
            sets = [list(chosen) for size in sizes for chosen in combinations(values, size)]
            return [ArrayRule(values=tuple(sets))]
        found = []
        for size in list(sizes)[:16]:
            bounds = [round(i * len(values) / size) for i in range(size + 1)] if size else [0]
            parts = [values[bounds[i] : bounds[i + 1]] for i in range(size)]
            conjs = tuple(self._one_of(part) for part in parts)
            found.append(ArrayRule(first=conjs, least=size, most=size))
        return found

    def _one_of(self, values: list[Any]) -> Conjunction:
        expander = self.expander
        node = expander.node(0)
        return expander.holding(expander.reader.made(node, {"enum": values}, "uniqueItems"))

"""Rules of arrays as schemas."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Any

from penstock.grammar.json_schema.rules import UNBOUNDED, ArrayRule, Conjunction, Contains, without
from penstock.grammar.json_schema.unsupported import UnsupportedKeyword

if TYPE_CHECKING:
    from penstock.grammar.json_schema.emit import Emitter

MOST_PLACES = 64  # of items that are told apart
MOST_SETS = 64  # of values that are listed


class Arrays:
    """Of one schema."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self.expander = emitter.expander

    def schemas(self, rule: ArrayRule) -> list[dict[str, Any]]:
        """Schemas of which one holds where a rule does: not more, and often less."""
        if rule.excluded:
            return self._excluding(rule)
        for contains in rule.contains:
            placed = self._placed(rule, contains)
            if placed is None or placed.least > placed.most:
                raise UnsupportedKeyword("contains", "beside what else is said of the items")
            rule = placed
        if rule.unique:
            return [schema for part in self._unique(rule) for schema in self._plain(part)]
        return self._plain(rule)

    def _excluding(self, rule: ArrayRule) -> list[dict[str, Any]]:
        """Of other lengths than the values that are excluded have."""
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
        """So many of the first items that may be what an array is to contain are so; the others
        are not, if there may be no more."""
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
        if contains.most < UNBOUNDED:  # no more items than may be so
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
        """Rules whose items differ by their places, or arrays of one item."""
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
                "uniqueItems", "where two or more items must be there that may be equal"
            )
        return [apart]

    def _apart(self, rule: ArrayRule) -> ArrayRule | None:
        """As many items as there must be, if those of different places never are equal."""
        conjs = [rule.item(place) for place in range(min(rule.least, MOST_PLACES + 1))]
        if len(conjs) > 8:
            return None
        for one, other in combinations(conjs, 2):
            if not self.expander.empty(one | other):
                return None
        return replace(rule, most=rule.least)

    def _values(self, rule: ArrayRule) -> list[Any] | None:
        """What items may be, if these are a few values."""
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
        """Of a few values all sets, of more those of which each item comes from its own part."""
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

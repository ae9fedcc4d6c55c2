"""Converts rules of objects to schemas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, islice
from typing import TYPE_CHECKING, Any

from penstock.grammar.json_schema.expander import concerns, search
from penstock.grammar.json_schema.rules import (
    ANYTHING,
    UNBOUNDED,
    Conjunction,
    ObjectRule,
    StringRule,
    ordered,
)
from penstock.grammar.json_schema.scalars import string
from penstock.grammar.json_schema.unsupported import UnsupportedKeyword

if TYPE_CHECKING:
    from penstock.grammar.json_schema.emit import Emitter

MOST_SETS = 48  # alternative sets of members


class Objects:
    """The conversion of one schema's object rules."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self.expander = emitter.expander

    def schemas(self, rule: ObjectRule) -> list[dict[str, Any]]:
        """Returns alternative schemas of a rule; their union is at most the rule, and sometimes
        less."""
        if rule.excluded:
            return self._excluding(rule)
        if rule.some:
            return self._choosing(rule)
        members = self._members(rule)
        if any(members.get(name, True) is False for name in rule.required):
            return []
        return self._counted(rule, members)

    def _choosing(self, rule: ObjectRule) -> list[dict[str, Any]]:
        """Returns one schema per named member that may be the required one."""
        some = rule.some[0]
        names = ordered((*rule.members, *rule.required, *self._listed(rule)))
        found: list[dict[str, Any]] = []
        for name in names:
            whole = self.expander.member(rule, name) | some.conj
            if not concerns(some, name) or self.expander.empty(whole):
                continue
            members = {**rule.members, name: rule.members.get(name, ANYTHING) | some.conj}
            required = ordered((*rule.required, name))
            chosen = replace(rule, members=members, required=required, some=rule.some[1:])
            found += self.schemas(chosen)
            if len(found) > MOST_SETS:
                break
        if not found:
            raise UnsupportedKeyword("not", "for members that the schema does not name")
        return found[:MOST_SETS]

    def _members(self, rule: ObjectRule) -> dict[str, Any]:
        """Returns the schemas of all named members: False for those that are forbidden."""
        names = [*rule.members, *rule.required, *self._listed(rule)]
        names += [name for rest in rule.rests for name in sorted(rest.names)]
        return {
            name: self.emitter.schema_of(self.expander.member(rule, name))
            for name in ordered(names)
        }

    def _listed(self, rule: ObjectRule) -> list[str]:
        """Returns the allowed names if they are a finite list."""
        if not rule.names:
            return []
        found = self.expander.form(rule.names).rules.get("string", ())
        if any(each.values is None for each in found):
            return []
        return [name for each in found for name in each.values or ()]

    def _excluding(self, rule: ObjectRule) -> list[dict[str, Any]]:
        """Returns objects that differ from the excluded values in their number of members, where
        possible."""
        if any(rule.excluded) or rule.most == 0:
            raise UnsupportedKeyword("not", "for values that are objects with members")
        return self.schemas(replace(rule, least=max(rule.least, 1), excluded=()))

    def _counted(self, rule: ObjectRule, members: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns schemas for the required number of members."""
        others = self._others(rule)
        free = _optional(members, rule.required)
        least = rule.least - len(rule.required)
        most = UNBOUNDED if rule.most == UNBOUNDED else rule.most - len(rule.required)
        if most >= (UNBOUNDED if others else len(free)) and least <= 0:
            return [_schema(members, rule.required, others)]
        if not free and others and least <= 1:
            return [self._limited(rule, members, rule.required, rule.least)]
        found = list(islice(self._sets(rule, members, max(least, 0), most), 2 * MOST_SETS))
        if not found and others:
            raise UnsupportedKeyword(
                "minProperties",
                "where it requires two or more members that the schema does not name: their names "
                "may be equal; name all but one of them in `properties`",
            )
        return found

    def _limited(
        self, rule: ObjectRule, members: dict[str, Any], required: tuple[str, ...], least: int
    ) -> dict[str, Any]:
        """Returns a schema with unnamed members, whose named members are all required."""
        found = _schema(members, required, self._others(rule))
        if least > len(required):
            found["minProperties"] = least
        if rule.most < UNBOUNDED:
            found["maxProperties"] = rule.most
        return found

    def _sets(
        self, rule: ObjectRule, members: dict[str, Any], least: int, most: int
    ) -> Iterator[dict[str, Any]]:
        """Yields one schema per choice of the present members."""
        others = self._others(rule)
        free = _optional(members, rule.required)
        if most >= (UNBOUNDED if others else len(free)):
            yield from self._least(members, rule.required, least, others)
        elif most < len(free):
            for chosen in islice(combinations(free, most), MOST_SETS):
                gone = {name: False for name in free if name not in chosen}
                yield from self._least({**members, **gone}, rule.required, least, {})
        else:
            yield from self._least(members, rule.required, least, {})
        if others and max(least, 1) <= most:
            yield from self._with_others(rule, members, max(least, 1))

    def _with_others(
        self, rule: ObjectRule, members: dict[str, Any], least: int
    ) -> Iterator[dict[str, Any]]:
        """Yields schemas with `least` - 1 optional named members and at least one unnamed one. The
        names of two unnamed ones may be equal, so that they would count as one."""
        for chosen in islice(combinations(_optional(members, rule.required), least - 1), MOST_SETS):
            required = (*rule.required, *chosen)
            kept = {name: each if name in required else False for name, each in members.items()}
            yield self._limited(rule, kept, required, len(required) + 1)

    def _least(
        self, members: dict[str, Any], required: tuple[str, ...], least: int, others: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """Yields schemas with at least `least` optional members, by the first ones that are
        present."""
        if not least:
            yield _schema(members, required, others)
            return
        free = _optional(members, required)
        for chosen in islice(combinations(free, least), MOST_SETS):
            last = free.index(chosen[-1])
            gone = {name: False for name in free[:last] if name not in chosen}
            yield _schema({**members, **gone}, (*required, *chosen), others)

    def _others(self, rule: ObjectRule) -> dict[str, Any]:
        """Returns `patternProperties` and `additionalProperties` for unnamed members; empty if
        there are none."""
        groups = self._groups(rule)
        if groups is None:
            return {}
        rest = ANYTHING
        for each in rule.rests:
            rest |= each.conj
        matching = {}
        for pattern, conj in groups.items():
            matching[pattern] = self.emitter.schema_of(conj)
        name = self._name(rule)
        if name is None:
            return {}
        additional = self.emitter.schema_of(rest)
        if name:
            if matching:  # the names that satisfy both are not known
                return {}
            matching, additional = {name: additional}, False
        if all(each is False for each in (*matching.values(), additional)):
            return {}
        return {"patternProperties": matching, "additionalProperties": additional}

    def _name(self, rule: ObjectRule) -> str | None:
        """Returns a pattern of the allowed names; empty if all are, None if no pattern expresses
        them."""
        if not rule.names:
            return ""
        form = self.expander.form(rule.names)
        for each in form.rules.get("string", ()):
            if not isinstance(each, StringRule) or each.values is not None:
                continue
            schema = string(each)
            if schema is None or schema.keys() - {"type", "pattern", "minLength", "maxLength"}:
                continue
            lengths = schema.keys() & {"minLength", "maxLength"}
            if "pattern" in schema and lengths:
                continue
            if lengths:
                most = "" if each.most >= UNBOUNDED else each.most
                return f"^[\\s\\S]{{{each.least},{most}}}$"
            return str(schema.get("pattern", ""))
        return None

    def _groups(self, rule: ObjectRule) -> dict[str, Conjunction] | None:
        """Returns the conjunctions of unnamed members by disjoint patterns of their names."""
        found: dict[str, Conjunction] = {}
        patterns = ordered((*rule.matching, *(p for r in rule.rests for p in sorted(r.patterns))))
        for pattern in patterns:
            conj = rule.matching.get(pattern, ANYTHING)
            for rest in rule.rests:
                if pattern not in rest.patterns:
                    conj |= rest.conj
            found[pattern] = conj
        return self._apart(found)

    def _apart(self, groups: dict[str, Conjunction]) -> dict[str, Conjunction]:
        """Merges patterns that may match the same name; their members satisfy both conjunctions."""
        found: list[tuple[str, Conjunction]] = []
        for pattern, conj in groups.items():
            near = [each for each in found if not self.emitter.disjoint(each[0], pattern)]
            found = [each for each in found if each not in near]
            for other, more in near:
                pattern, conj = f"(?:{other})|(?:{pattern})", conj | more
            found.append((pattern, conj))
        return dict(found)


def _optional(members: dict[str, Any], required: tuple[str, ...]) -> list[str]:
    """Returns the names of the allowed members that are not required."""
    return [name for name, each in members.items() if each is not False and name not in required]


def _schema(
    members: dict[str, Any], required: tuple[str, ...], others: dict[str, Any]
) -> dict[str, Any]:
    """Returns the schema of an object. Forbidden members are omitted where no others are
    allowed."""
    additional = others.get("additionalProperties", False)
    matching = others.get("patternProperties", {})
    found: dict[str, Any] = {"type": "object"}
    open = bool(others)
    properties = {n: each for n, each in members.items() if each is not False or open}
    for name, each in properties.items():
        if any(each == more and search(pattern, name) for pattern, more in matching.items()):
            properties[name] = True  # the pattern implies it; llguidance joins the two
    if properties:
        found["properties"] = properties
    if required:
        found["required"] = list(required)
    if matching:
        found["patternProperties"] = matching
    if additional is not True:
        found["additionalProperties"] = additional
    return found

"""Rules: one alternative of a schema for one kind of value, a conjunction of simple constraints.

Inner schemas are expanded later: they are conjunctions of literals, which are a node's number and
whether the node must hold or must not hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeAlias

Literal: TypeAlias = "tuple[int, bool]"
Conjunction: TypeAlias = "frozenset[Literal]"
ANYTHING: Conjunction = frozenset()
KINDS = ("null", "boolean", "integer", "number", "string", "array", "object")
UNBOUNDED = 1 << 62


def both(
    one: Mapping[str, Conjunction], other: Mapping[str, Conjunction]
) -> dict[str, Conjunction]:
    """Returns the conjunctions of both, by name."""
    found = dict(one)
    for name, conj in other.items():
        found[name] = found.get(name, ANYTHING) | conj
    return found


def ordered(values: Iterable[Any]) -> tuple[Any, ...]:
    """Returns the distinct values in order."""
    return tuple(dict.fromkeys(values))


@dataclass(frozen=True)
class Rule:
    """A rule for one kind; the base class alone is the rule of null."""

    values: tuple[Any, ...] | None = None  # the only valid ones; no other constraint applies then
    excluded: tuple[Any, ...] = ()  # invalid values

    def meet(self, other: Any) -> Any:
        """Returns the conjunction of both rules. Their inner schemas may still exclude each
        other."""
        return replace(self, excluded=(*self.excluded, *other.excluded))

    def listing(self, values: tuple[Any, ...]) -> Any:
        """Returns a rule that lists these values, without other constraints."""
        if isinstance(self, ArrayRule | ObjectRule):
            return type(self)(values=values, seen=self.seen)  # type: ignore[arg-type]
        return type(self)(values=values)

    def void(self) -> bool:
        """Returns whether obviously no value satisfies it."""
        return self.values == ()


@dataclass(frozen=True)
class NumberRule(Rule):
    """Constraints of numbers. `whole`: True, integers only; False, no integers."""

    whole: bool | None = None
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    multiples: frozenset[Fraction] = frozenset()

    def meet(self, other: Any) -> Any:
        if self.whole is not None and other.whole is not None and self.whole != other.whole:
            return replace(self, values=())
        return replace(
            super().meet(other),
            whole=other.whole if self.whole is None else self.whole,
            least=_pick(max, self.least, other.least),
            most=_pick(min, self.most, other.most),
            above=_pick(max, self.above, other.above),
            below=_pick(min, self.below, other.below),
            multiples=self.multiples | other.multiples,
        )

    def low(self) -> float | None:
        """Returns the lower bound, inclusive or not."""
        return _pick(max, self.least, self.above)

    def high(self) -> float | None:
        """Returns the upper bound, inclusive or not."""
        return _pick(min, self.most, self.below)

    def void(self) -> bool:
        low, high = self.low(), self.high()
        if self.values == () or (low is not None and high is not None and low > high):
            return True
        if low is None or low != high:
            return False
        return self.above == low or self.below == high or not self.holds(low)

    def holds(self, value: Any) -> bool:
        """Returns whether a number satisfies it, ignoring `excluded`."""
        if self.whole is not None and self.whole != (value == math.floor(value)):
            return False
        exact = Fraction(str(value))
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and all((exact / step).denominator == 1 for step in self.multiples)
        )


@dataclass(frozen=True)
class StringRule(Rule):
    """Constraints of strings. Lengths are in characters; patterns are searched for."""

    least: int = 0
    most: int = UNBOUNDED
    patterns: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()  # patterns that must not be found
    formats: tuple[str, ...] = ()

    def meet(self, other: Any) -> Any:
        return replace(
            super().meet(other),
            least=max(self.least, other.least),
            most=min(self.most, other.most),
            patterns=ordered((*self.patterns, *other.patterns)),
            unmatched=ordered((*self.unmatched, *other.unmatched)),
            formats=ordered((*self.formats, *other.formats)),
        )

    def void(self) -> bool:
        return (
            self.values == ()
            or self.least > self.most
            or bool(set(self.patterns) & set(self.unmatched))
        )


@dataclass(frozen=True)
class Contains:
    """From `least` to `most` items satisfy a conjunction."""

    conj: Conjunction
    least: int
    most: int


@dataclass(frozen=True)
class ArrayRule(Rule):
    first: tuple[Conjunction, ...] = ()
    rest: Conjunction = ANYTHING
    least: int = 0
    most: int = UNBOUNDED
    unique: bool = False
    contains: tuple[Contains, ...] = ()
    seen: int = 0  # leading items that `unevaluatedItems` ignores

    def item(self, index: int) -> Conjunction:
        """Returns the conjunction of the item at an index."""
        return self.first[index] if index < len(self.first) else self.rest

    def meet(self, other: Any) -> Any:
        count = max(len(self.first), len(other.first))
        return replace(
            super().meet(other),
            first=tuple(self.item(i) | other.item(i) for i in range(count)),
            rest=self.rest | other.rest,
            least=max(self.least, other.least),
            most=min(self.most, other.most),
            unique=self.unique or other.unique,
            contains=ordered((*self.contains, *other.contains)),
            seen=max(self.seen, other.seen),
        )

    def void(self) -> bool:
        return self.values == () or self.least > self.most


@dataclass(frozen=True)
class OtherMembers:
    """The conjunction of members that are neither in `names` nor match one of `patterns`."""

    names: frozenset[str]
    patterns: frozenset[str]
    conj: Conjunction


@dataclass(frozen=True)
class SomeMember:
    """At least one member satisfies a conjunction: one that matches `pattern`, or one of `rest`."""

    pattern: str | None
    rest: OtherMembers | None
    conj: Conjunction


@dataclass(frozen=True)
class EvaluatedMembers:
    """Members that `unevaluatedProperties` ignores."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    every: bool = False


@dataclass(frozen=True)
class ObjectRule(Rule):
    members: dict[str, Conjunction] = field(default_factory=dict)
    matching: dict[str, Conjunction] = field(default_factory=dict)  # by pattern of names
    rests: tuple[OtherMembers, ...] = ()
    required: tuple[str, ...] = ()
    least: int = 0
    most: int = UNBOUNDED
    names: Conjunction = ANYTHING  # the conjunction of every name
    some: tuple[SomeMember, ...] = ()
    seen: EvaluatedMembers = EvaluatedMembers()

    def meet(self, other: Any) -> Any:
        seen = EvaluatedMembers(
            self.seen.names | other.seen.names,
            self.seen.patterns | other.seen.patterns,
            self.seen.every or other.seen.every,
        )
        return replace(
            super().meet(other),
            members=both(self.members, other.members),
            matching=both(self.matching, other.matching),
            rests=ordered((*self.rests, *other.rests)),
            required=ordered((*self.required, *other.required)),
            least=max(self.least, other.least),
            most=min(self.most, other.most),
            names=self.names | other.names,
            some=ordered((*self.some, *other.some)),
            seen=seen,
        )

    def void(self) -> bool:
        return self.values == () or max(self.least, len(self.required)) > self.most


def _pick(choose: Any, one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)  # type: ignore[no-any-return]


ANY: dict[str, Rule] = {
    "null": Rule(),
    "boolean": Rule(values=(False, True)),
    "number": NumberRule(),
    "string": StringRule(),
    "array": ArrayRule(),
    "object": ObjectRule(),
}


def kind(value: Any) -> str:
    """Returns the kind of a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def same(one: Any, other: Any) -> bool:
    """Returns whether two JSON values are equal."""
    if kind(one) != kind(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def key(value: Any) -> Any:
    """Returns a hashable key that is equal for equal values."""
    if isinstance(value, list):
        return ("array", tuple(map(key, value)))
    if isinstance(value, dict):
        return ("object", frozenset((name, key(each)) for name, each in value.items()))
    return (kind(value), value)


def without(values: Iterable[Any], others: Iterable[Any]) -> tuple[Any, ...]:
    """Returns the distinct values that are not in `others`."""
    found = {key(value): value for value in reversed(list(values))}
    for other in others:
        found.pop(key(other), None)
    return tuple(reversed(found.values()))

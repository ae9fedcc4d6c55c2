"""The alternatives of a negated schema: at least one per keyword."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import combinations
from typing import TYPE_CHECKING, Any

from penstock.grammar.formats import OTHERWISE
from penstock.grammar.json_schema.forms import EVERY, NONE, Form, besides, only, union, unsupported
from penstock.grammar.json_schema.keywords import Keywords
from penstock.grammar.json_schema.nodes import Node
from penstock.grammar.json_schema.rules import (
    ANY,
    ANYTHING,
    UNBOUNDED,
    ArrayRule,
    Contains,
    NumberRule,
    ObjectRule,
    OtherMembers,
    Rule,
    SomeMember,
    StringRule,
    kind,
    without,
)

if TYPE_CHECKING:
    from penstock.grammar.json_schema.expander import Expander


def form(expander: Expander, node: Node) -> Form:
    """Returns the alternatives of the negation of a node."""
    if isinstance(node.contents, bool):
        return NONE if node.contents else EVERY
    words = Keywords(expander, node)
    if "$ref" in words and node.old:
        return expander.literal_form((expander.reader.target(node, "$ref"), False))
    return union((*_plain(words), *_numbers(words), *_strings(words), *_arrays(words),
                  *_objects(words), *_applied(words)))  # fmt: skip


def _plain(words: Keywords) -> Iterator[Form]:
    names = words.types()
    if names is not None:
        if "integer" in names and "number" not in names:
            yield only("number", NumberRule(whole=False))
        yield besides(*names, *(["number"] if "integer" in names else []))
    if "const" in words and words.node.known("const"):
        yield _excluding([words.contents["const"]])
    values = words.values()
    if values is not None:
        yield _excluding(values)


def _excluding(values: list[Any]) -> Form:
    rules = dict(EVERY.rules)
    for name in {kind(value) for value in values}:
        gone = tuple(value for value in values if kind(value) == name)
        if name == "null":
            del rules[name]
        elif name == "boolean":
            left = without((False, True), gone)
            rules[name] = (Rule(values=left),)
        else:
            rules[name] = (type(ANY[name])(excluded=gone),)
    return Form({name: each for name, each in rules.items() if each[0].values != ()}, {})


def _numbers(words: Keywords) -> Iterator[Form]:
    bounds = {
        "minimum": "below",
        "maximum": "above",
        "exclusiveMinimum": "most",
        "exclusiveMaximum": "least",
    }
    for keyword, opposite in bounds.items():
        bound: Any = words.number(keyword)
        if bound is not None:
            yield only("number", NumberRule(**{opposite: bound}))
    if words.step() is not None:
        yield unsupported("number", words.unsupported("multipleOf"))


def _strings(words: Keywords) -> Iterator[Form]:
    least, most, pattern = (
        words.count("minLength"), words.count("maxLength"), words.text("pattern"),
    )  # fmt: skip
    if least:
        yield only("string", StringRule(most=least - 1))
    if most is not None:
        yield only("string", StringRule(least=most + 1))
    if pattern is not None:
        yield only("string", StringRule(unmatched=(pattern,)))
    given = words.format()
    if given in OTHERWISE:
        # Clients may interpret an alias, which is older or wider, in another way.
        if given == words.contents["format"]:
            yield only("string", StringRule(patterns=(OTHERWISE[given],)))
        yield unsupported("string", words.unsupported("format"))


def _arrays(words: Keywords) -> Iterator[Form]:
    least, most = words.count("minItems"), words.count("maxItems")
    if least:
        yield only("array", ArrayRule(most=least - 1))
    if most is not None:
        yield only("array", ArrayRule(least=most + 1))
    if words.contents.get("uniqueItems") is True:
        yield unsupported("array", words.unsupported("uniqueItems"))
    first, rest, key = words.items()
    for place, number in enumerate(first):
        conj = words.expander.holding(number, False)
        yield only("array", ArrayRule(first=(*(ANYTHING,) * place, conj), least=place + 1))
    if rest is not None:
        conj = words.schema(key, False)
        place = len(first)
        if not words.expander.empty(conj):
            yield only("array", ArrayRule(first=(*(ANYTHING,) * place, conj), least=place + 1))
            yield unsupported("array", words.unsupported(key))
    if "contains" in words and words.node.known("contains"):
        yield from _contains(words)


def _contains(words: Keywords) -> Iterator[Form]:
    least, most = words.count("minContains"), words.count("maxContains")
    least = 1 if least is None else least
    if least == 1:
        yield only("array", ArrayRule(rest=words.schema("contains", False)))
    elif least > 1:
        contains = Contains(words.schema("contains"), 0, least - 1)
        yield only("array", ArrayRule(contains=(contains,)))
    if most is not None:
        contains = Contains(words.schema("contains"), most + 1, UNBOUNDED)
        yield only("array", ArrayRule(contains=(contains,)))


def _objects(words: Keywords) -> Iterator[Form]:
    expander = words.expander
    never, holding = expander.never, expander.holding
    for name in words.required():
        yield only("object", ObjectRule(members={name: never}))
    least, most = words.count("minProperties"), words.count("maxProperties")
    if least:
        yield only("object", ObjectRule(most=least - 1))
    if most is not None:
        yield only("object", ObjectRule(least=most + 1))
    for name, number in words.named("properties").items():
        conj = holding(number, False)
        yield only("object", ObjectRule(members={name: conj}, required=(name,)))
    yield from _some(words)
    for keyword in ("propertyNames", "unevaluatedProperties"):
        if words.contents.get(keyword, True) not in (True, {}) and words.node.known(keyword):
            yield unsupported("object", words.unsupported(keyword))
    if words.contents.get("unevaluatedItems", True) is not True:
        yield unsupported("array", words.unsupported("unevaluatedItems"))


def _some(words: Keywords) -> Iterator[Form]:
    """Yields: an unnamed member violates its schema."""
    matching = words.named("patternProperties")
    for pattern, number in matching.items():
        conj = words.expander.holding(number, False)
        if not words.expander.empty(conj):
            yield only("object", ObjectRule(least=1, some=(SomeMember(pattern, None, conj),)))
    if "additionalProperties" in words:
        conj = words.schema("additionalProperties", False)
        rest = OtherMembers(frozenset(words.members("properties")), frozenset(matching), ANYTHING)
        if not words.expander.empty(conj):
            yield only("object", ObjectRule(least=1, some=(SomeMember(None, rest, conj),)))


def _applied(words: Keywords) -> Iterator[Form]:
    expander = words.expander
    for number in words.referred():
        yield expander.literal_form((number, False))
    for number in words.schemas("allOf"):
        yield expander.literal_form((number, False))
    if "anyOf" in words:
        yield _none_of(expander, words.schemas("anyOf"))
    if "oneOf" in words:
        numbers = words.schemas("oneOf")
        yield _none_of(expander, numbers)
        for one, other in combinations(numbers, 2):
            yield expander.product(
                expander.literal_form((one, True)), expander.literal_form((other, True))
            )
    if "not" in words:
        yield expander.form(words.schema("not"))
    yield from _conditional(words)
    for keyword, name, dependency in words.dependencies():
        if words.node.known(keyword):
            yield from _depending(words, keyword, name, dependency)


def _conditional(words: Keywords) -> Iterator[Form]:
    """Yields: the branch that applies is violated."""
    expander = words.expander
    if "if" in words and words.node.known("if"):
        for branch, holds in (("then", True), ("else", False)):
            if branch in words:
                condition = expander.form(words.schema("if", holds))
                yield expander.product(condition, expander.form(words.schema(branch, False)))


def _none_of(expander: Expander, numbers: list[int]) -> Form:
    return reduce(
        expander.product, (expander.literal_form((number, False)) for number in numbers), EVERY
    )


def _depending(words: Keywords, keyword: str, name: str, dependency: Any) -> Iterator[Form]:
    """Yields: a member is present, and its dependency is violated."""
    expander = words.expander
    there = only("object", ObjectRule(required=(name,)))
    if isinstance(dependency, list):
        for other in dependency:
            missing = only("object", ObjectRule(members={other: expander.never}))
            yield expander.product(there, missing)
    else:
        number = words.dependent(keyword, name, dependency)
        yield expander.product(there, expander.literal_form((number, False)))

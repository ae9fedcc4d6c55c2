"""The alternatives of a schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from penstock.grammar.formats import FORMATS
from penstock.grammar.json_schema.forms import (
    EVERY,
    NONE,
    Form,
    besides,
    first,
    only,
    union,
    unseen,
    where,
)
from penstock.grammar.json_schema.keywords import Keywords
from penstock.grammar.json_schema.nodes import Node
from penstock.grammar.json_schema.rules import (
    ANY,
    ANYTHING,
    UNBOUNDED,
    ArrayRule,
    Conjunction,
    Contains,
    EvaluatedMembers,
    NumberRule,
    ObjectRule,
    OtherMembers,
    Rule,
    StringRule,
    kind,
    without,
)

if TYPE_CHECKING:
    from penstock.grammar.json_schema.expander import Expander


MOST_APART = 24  # alternatives of one `oneOf` branch after excluding another


def form(expander: Expander, node: Node) -> Form:
    """Returns the alternatives of a node."""
    if isinstance(node.contents, bool):
        return EVERY if node.contents else NONE
    words = Keywords(expander, node)
    if "$ref" in words and node.old:
        return expander.literal_form((expander.reader.target(node, "$ref"), True))
    found = reduce(expander.product, _plain(words))
    found = reduce(expander.product, _applied(words), found)
    return _unevaluated(words, found)


def _plain(words: Keywords) -> Iterator[Form]:
    """Yields the forms of a node's own keywords."""
    yield types(words.types())
    if "const" in words:
        yield listed([words.contents["const"]])
    values = words.values()
    if values is not None:
        yield listed(values)
    yield Form(
        {
            **EVERY.rules,
            "number": (_number(words),),
            "string": (_string(words),),
            "array": (_array(words),),
            "object": (_object(words),),
        },
        {},
    )


def types(names: list[str] | None) -> Form:
    """Returns the form of values of some types."""
    if names is None:
        return EVERY
    rules: dict[str, tuple[Rule, ...]] = {}
    for name in names:
        if name == "integer":
            if "number" not in names:
                rules["number"] = (NumberRule(whole=True),)
        else:
            rules[name] = (ANY[name],)
    return Form(rules, {})


def listed(values: list[Any]) -> Form:
    """Returns the form of these values."""
    rules: dict[str, tuple[Rule, ...]] = {}
    for value in without(values, ()):
        name = kind(value)
        before = rules[name][0].values if name in rules else ()
        rules[name] = (replace(ANY[name], values=(*(before or ()), value)),)
    if "null" in rules:
        rules["null"] = (ANY["null"],)
    return Form(rules, {})


def _number(words: Keywords) -> NumberRule:
    step = words.step()
    return NumberRule(
        least=words.number("minimum"),
        most=words.number("maximum"),
        above=words.number("exclusiveMinimum"),
        below=words.number("exclusiveMaximum"),
        multiples=frozenset() if step is None else frozenset((step,)),
    )


def _string(words: Keywords) -> StringRule:
    pattern, form = words.text("pattern"), words.format()
    most = words.count("maxLength")
    return StringRule(
        least=words.count("minLength") or 0,
        most=UNBOUNDED if most is None else most,
        patterns=() if pattern is None else (pattern,),
        formats=(form,) if form in FORMATS else (),
    )


def _array(words: Keywords) -> ArrayRule:
    first, rest, _ = words.items()
    most = words.count("maxItems")
    contains: tuple[Contains, ...] = ()
    if "contains" in words:
        least, highest = words.count("minContains"), words.count("maxContains")
        contains = (
            Contains(
                words.schema("contains"),
                1 if least is None else least,
                UNBOUNDED if highest is None else highest,
            ),
        )
    return ArrayRule(
        first=tuple(words.expander.holding(number) for number in first),
        rest=ANYTHING if rest is None else rest,
        least=words.count("minItems") or 0,
        most=UNBOUNDED if most is None else most,
        unique=words.contents.get("uniqueItems") is True,
        contains=contains,
        seen=len(first) if rest is None else UNBOUNDED,
    )


def _object(words: Keywords) -> ObjectRule:
    holding = words.expander.holding
    members = {name: holding(number) for name, number in words.named("properties").items()}
    matching = {name: holding(number) for name, number in words.named("patternProperties").items()}
    names, patterns = frozenset(members), frozenset(matching)
    rests: tuple[OtherMembers, ...] = ()
    if "additionalProperties" in words:
        rests = (OtherMembers(names, patterns, words.schema("additionalProperties")),)
    most = words.count("maxProperties")
    return ObjectRule(
        members=members,
        matching=matching,
        rests=rests,
        required=tuple(dict.fromkeys(words.required())),
        least=words.count("minProperties") or 0,
        most=UNBOUNDED if most is None else most,
        names=words.schema("propertyNames") if "propertyNames" in words else ANYTHING,
        seen=EvaluatedMembers(names, patterns, bool(rests)),
    )


def _applied(words: Keywords) -> Iterator[Form]:
    """Yields the forms of the schemas that a node applies to the same value."""
    expander = words.expander
    for number in words.referred():
        yield expander.literal_form((number, True))
    for number in words.schemas("allOf"):
        yield expander.literal_form((number, True))
    if "anyOf" in words:
        yield union(expander.literal_form((number, True)) for number in words.schemas("anyOf"))
    if "oneOf" in words:
        yield _one_of(expander, words.schemas("oneOf"))
    if "not" in words:
        yield unseen(expander.form(words.schema("not", False)))
    if "if" in words and ("then" in words or "else" in words):
        yield _conditional(words)
    for keyword, name, dependency in words.dependencies():
        yield _depending(words, keyword, name, dependency)


def _one_of(expander: Expander, numbers: list[int]) -> Form:
    """Returns the union of the alternatives, each minus the others that it overlaps."""
    alternatives = []
    for index, number in enumerate(numbers):
        found = expander.literal_form((number, True))
        for other in numbers[:index] + numbers[index + 1 :]:
            if not expander.product(found, expander.literal_form((other, True))).empty:
                found = first(
                    expander.product(found, expander.literal_form((other, False))), MOST_APART
                )
        alternatives.append(found)
    return union(alternatives)


def _conditional(words: Keywords) -> Form:
    expander, condition = words.expander, words.schema("if")
    then = expander.form(words.schema("then")) if "then" in words else EVERY
    otherwise = expander.form(words.schema("else")) if "else" in words else EVERY
    met = expander.product(expander.form(condition), then)
    unmet = unseen(expander.form(words.schema("if", False)))
    return union((met, expander.product(unmet, otherwise)))


def _depending(words: Keywords, keyword: str, name: str, dependency: Any) -> Form:
    """Returns the form of a dependency: the member is absent, or its dependency holds."""
    expander = words.expander
    absent = where("object", ObjectRule(members={name: expander.never}))
    if isinstance(dependency, list):
        present = where("object", ObjectRule(required=tuple(dependency)))
    else:
        present = expander.literal_form((words.dependent(keyword, name, dependency), True))
    found = expander.product(present, only("object", ObjectRule(required=(name,))))
    return union((besides("object"), only("object", *absent.rules["object"]), found))


def _unevaluated(words: Keywords, found: Form) -> Form:
    """Applies `unevaluatedProperties` and `unevaluatedItems` to the members and items not
    evaluated yet."""
    rules = dict(found.rules)
    expander = words.expander
    for keyword, name, add in (
        ("unevaluatedProperties", "object", _other_members),
        ("unevaluatedItems", "array", _other_items),
    ):
        if keyword in words and name in rules:
            more = [add(rule, words.schema(keyword)) for rule in rules[name]]
            pairs = zip(rules[name], more, strict=True)
            met = [expander.product(only(name, a), only(name, b)) for a, b in pairs]
            joined = union(met)
            rules.pop(name)
            rules |= joined.rules
            found = Form(found.rules, {**found.unsupported, **joined.unsupported})
    return Form(rules, found.unsupported)


def _other_members(rule: Any, conj: Conjunction) -> Rule:
    if rule.seen.every:
        return ANY["object"]
    rest = OtherMembers(rule.seen.names, rule.seen.patterns, conj)
    return ObjectRule(rests=(rest,), seen=EvaluatedMembers(every=True))


def _other_items(rule: Any, conj: Conjunction) -> Rule:
    if rule.seen >= UNBOUNDED:
        return ANY["array"]
    return ArrayRule(first=(ANYTHING,) * rule.seen, rest=conj, seen=UNBOUNDED)

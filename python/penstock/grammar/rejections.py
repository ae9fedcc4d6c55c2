"""Translates llguidance's errors into messages with the place and a remedy.

llguidance names neither. To find the place, each part of the schema is compiled alone; the
innermost part that is rejected for the same reason is the cause.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from penstock.grammar.growth import resolved
from penstock.grammar.schema import LISTS, ONE, PLACES

MOST_PROBED = 128  # parts of a schema
ENDLESS = "NoExtensionBias"
UNSATISFIABLE = "no document satisfies the schema"  # raised by `normalize`

# (llguidance's error as a regular expression, the message); `{0}`, `{1}` are its groups.
_MEANINGS = (
    (
        ENDLESS,
        "no finite document satisfies the schema: each must contain another one; end the recursion "
        "with a member that is not required, a list that may be empty, or `anyOf` with another "
        "alternative",
    ),
    (
        r"Unsatisfiable schema: minLength \((\d+)\) is greater than maxLength \((\d+)\)",
        "no string satisfies the schema: `minLength` {0} is greater than `maxLength` {1}; lower "
        "the one or raise the other",
    ),
    (
        r"Unsatisfiable schema: minItems \((\d+)\) is greater than maxItems \((\d+)\)",
        "no list satisfies the schema: `minItems` {0} is greater than `maxItems` {1}; lower the "
        "one or raise the other",
    ),
    (
        r"Unsatisfiable schema: minProperties > maxProperties",
        "no object satisfies the schema: `minProperties` is greater than `maxProperties`; lower "
        "the one or raise the other",
    ),
    (
        r"Unsatisfiable schema: required > maxProperties",
        "no object satisfies the schema: `required` has more names than `maxProperties` allows; "
        "raise `maxProperties` or require fewer",
    ),
    (
        r"Unsatisfiable schema: minProperties \(\d+\) is greater than number of properties",
        "no object satisfies the schema: `minProperties` requires more members than there are "
        "names; lower it, or allow `additionalProperties`",
    ),
    (
        r"Unsatisfiable schema: required property '(.*?)' is unsatisfiable",
        "no object satisfies the schema: no value satisfies the schema of its required member "
        "{0!r}; fix that schema, or do not require the member",
    ),
    (
        r"Unsatisfiable schema: Constant (.*) doesn't match length constraints",
        "no string satisfies the schema: the constant {0} breaks `minLength` or `maxLength`; "
        "change the constant or the bounds",
    ),
    (
        r"Unsatisfiable schema: Regex is empty",
        "no string satisfies the schema: none matches the `pattern` and satisfies `format`, "
        "`minLength` and `maxLength`; relax one of them",
    ),
    (
        r"Unsatisfiable schema: (?:All options in anyOf are unsatisfiable|No options in anyOf)",
        "no document satisfies the schema: none satisfies any of the alternatives (`anyOf`, "
        "`oneOf`, `enum` or types) together with the keywords beside them; fix an alternative",
    ),
    (
        r"Unsatisfiable schema: anyOf is empty",
        "no document satisfies the schema: an empty `anyOf`, `oneOf`, `enum` or `type` allows "
        "none; list what is allowed, or remove the keyword",
    ),
    (
        r"Unsatisfiable schema: incompatible types",
        "no document satisfies the schema: schemas that apply together (`allOf`, `$ref` or `enum` "
        "and the keywords beside them) require different types; remove one of them",
    ),
    (
        r"minimum \((.*?)\) is greater than maximum \((.*?)\)",
        "no number satisfies the schema: its minimum {0} is greater than its maximum {1}; lower "
        "the one or raise the other",
    ),
    (
        r"Unsatisfiable schema: (.*)",
        "no document satisfies the schema ({0}); relax the keywords that contradict each other",
    ),
    (
        UNSATISFIABLE + "$",
        "no document satisfies the schema: its keywords exclude each other; relax one of them",
    ),
    (
        r"Unable to determine if regex is empty",
        "it takes too long to decide whether any string matches the `pattern` and satisfies "
        "`format`, `minLength` and `maxLength`; write the length as a repetition in the pattern, "
        "or remove the bounds",
    ),
    (
        r"patternProperty regexes /(.*)/ and /(.*)/ are not disjoint",
        "the patterns {0!r} and {1!r} of `patternProperties` match a name in common, so two "
        "schemas would apply to its member; make each name match at most one pattern",
    ),
    (
        r"can't determine if patternProperty regexes /(.*)/ and /(.*)/ are disjoint",
        "it takes too long to decide whether the patterns {0!r} and {1!r} of `patternProperties` "
        "match a name in common; simplify them, or anchor each (`^`) with different letters",
    ),
    (
        r"oneOf constraints are not supported",
        "a document may satisfy several alternatives of `oneOf`; make them exclude each other by "
        "type or by a required member with its own `const`, or use `anyOf`",
    ),
    (
        r"min/maxProperties only supported when all keys",
        "`minProperties` and `maxProperties` are not supported beside optional members of "
        "`properties`; require all of those, or remove the bounds",
    ),
    (
        r"circular references with sibling keys are not supported: (?:.*:///)?(.*)",
        "the `$ref` {0!r} is circular, with other keywords beside it; remove those, or move them "
        "to its target",
    ),
    (
        r"(?:lookarounds not supported yet|look-around, including look-ahead and look-behind)",
        "a pattern uses look-around (`\\b`, `\\B`, `(?=`, `(?!`, `(?<`, or `^` or `$` in its "
        "middle), which is not supported; write it as alternatives",
    ),
    (
        r"backreferences are not supported",
        "a pattern uses a backreference (`\\1`), which is not supported; write out the "
        "alternatives",
    ),
    (
        r"Unicode property (?:not found|value not found)",
        "a pattern names an unknown Unicode property (`\\p`); use one of the Unicode standard, "
        "such as `\\p{{L}}`",
    ),
    (
        r"regex parse error:.*?error: (.*)",
        "a pattern is not a supported regular expression: {0}; fix it (the syntax is that of JSON "
        "Schema, without look-around and backreferences)",
    ),
    (
        r"(?:exceeds size limit|regex too (?:large|big)|too many expressions constructed)",
        "a pattern is too large; use fewer or smaller repetitions",
    ),
    (
        r"Pointer '(.*?)' does not exist",
        "the `$ref` {0!r} has no target; define it",
    ),
    (
        r"Anchor '(.*?)' (?:does not exist|is invalid)",
        "the `$ref` to the anchor {0!r} has no target; define it with `$anchor`",
    ),
    (
        r"(?:Resource '(.*?)' is not present in a registry|Default retriever does not fetch)",
        "a `$ref` (or the `$schema`) points outside the schema, and schemas are not fetched; "
        "define its target under `$defs`, and refer to it there",
    ),
    (
        r"(?:invalid|Invalid) (?:URI|uri|IRI|reference)|unexpected character at index",
        "an `$id` or a `$ref` is not a URI reference; escape its reserved characters",
    ),
    (
        r"Unknown specification: (.*)",
        "the `$schema` {0!r} is not a known draft; use draft 4, 6, 7, 2019-09 or 2020-12",
    ),
    (
        r"Unimplemented keys: \[(.*?)\]",
        "the keywords {0} are not supported; remove them",
    ),
    (
        r"Unknown format: (.*)",
        "the `format` {0!r} is not supported; remove it, or write it as a `pattern`",
    ),
    (r"Expected f64 for '(\w+)', got (.*)", "`{0}` must be a number. Given: {1}"),
    (
        r"Expected positive integer for '(\w+)', got (.*)",
        "`{0}` must be an integer of 0 or more. Given: {1}",
    ),
    (
        r"Expected (\w+) for '(\w+)'.*?, got (.*)",
        "`{1}` must be of the type {0}. Given: {2}",
    ),
    (r"Invalid type: (.*)", "`type` is not a JSON type: {0!r}"),
    (r"type must be a string.*", "`type` must be a string or a list of strings"),
    (
        r"(\$?\w+) must be an? (array|object|string).*",
        "`{0}` must be of the type {1}",
    ),
    (
        r"Expected f64 for numeric const, got (.*)",
        "the number {0} of `const` or `enum` is too large; write one that a double can hold",
    ),
    (
        r"Value for 'multipleOf' has too many digits: (.*)",
        "`multipleOf` {0} has too many digits; round it",
    ),
    (
        r"Value for 'multipleOf' must be non-negative|invalid multiple of",
        "`multipleOf` must be greater than 0",
    ),
    (
        r"Failed to generate regex for (?:integer|float) range|Infinite numbers|Overflow when",
        "the bounds of a number are too far apart, or have too many digits; round them",
    ),
    (
        r"Schema intersection stack level exceeded",
        "schemas that apply together (`allOf`, or `$ref` and the keywords beside it) are nested "
        "too deep, or are recursive; write them as one schema",
    ),
    (
        r"schema too large|grammar\) too big|number of symbols\) too big|fuel exhausted|"
        r"lexer precomputation failed|Too many items|too many states|Current row has",
        "the schema is too large: use fewer members, alternatives or repetitions, or split the "
        "request",
    ),
)


def translate(reason: str) -> str:
    """Translates an error of llguidance."""
    for pattern, meaning in _MEANINGS:
        found = re.search(pattern, reason, re.DOTALL)
        if found is not None:
            return meaning.format(*(one or "" for one in found.groups()))
    return f"llguidance rejects the schema: {reason}"


@dataclass(frozen=True)
class Cause:
    """The reason of a rejection, and the rejected part."""

    reason: str
    place: str
    part: Any


def explain(schema: Any, reason: str, refusal: Callable[[Any], str | None]) -> str:
    """Returns the message for a schema rejected for `reason`, with the place of the cause.

    refusal: returns the reason why a schema is rejected; None if it is accepted.
    """
    found = Cause(reason, "#", schema)
    waiting, probed = _parts(schema, "#"), 0
    # Of nested parts that are rejected for the same reason, the innermost is the cause.
    while waiting and probed < MOST_PROBED:
        place, part = waiting.pop(0)
        probed += 1
        own = refusal(_alone(schema, place))
        if own is not None and _causes(own, found, place):
            found = Cause(own, place, part)
            waiting = _parts(part, place) + _target(schema, part)
    text = translate(found.reason)
    pattern = found.part.get("pattern") if isinstance(found.part, dict) else None
    if isinstance(pattern, str) and text.startswith("a pattern "):
        text = f"the `pattern` {json.dumps(pattern)[:64]} {text.removeprefix('a pattern ')}"
    return f"{text} (in `{found.place}`)"


def _causes(own: str, found: Cause, place: str) -> bool:
    """Whether a part's rejection `own` causes the rejection of the whole."""
    if _excludes(own) and _excludes(found.reason):
        return _demanded(found, place)
    return translate(own) == translate(found.reason)


def _excludes(reason: str) -> bool:
    return "nsatisfiable" in reason or reason == UNSATISFIABLE


def _demanded(found: Cause, place: str) -> bool:
    """Whether every document must contain a document of the part at `place`."""
    required = found.part.get("required")
    names = required if isinstance(required, list) else []
    members = [f"{found.place}/properties/{_escaped(str(name))}" for name in names]
    inside = place.startswith((f"{found.place}/items", f"{found.place}/prefixItems/"))
    return (
        place in members
        or place.startswith(f"{found.place}/allOf/")
        or (inside and bool(found.part.get("minItems")))
    )


def _alone(schema: dict[str, Any], place: str) -> dict[str, Any]:
    """Returns the part at a place as a schema of its own whose references still resolve."""
    moved = _moved(schema)
    return {"$ref": _within(quote(place, safe="#/~")), "$defs": {"document": moved}}


def _moved(node: Any) -> Any:
    """Returns a schema with its references adapted to a place inside another one."""
    if isinstance(node, list):
        return [_moved(child) for child in node]
    if not isinstance(node, dict):
        return node
    moved = {key: _moved(child) for key, child in node.items()}
    target = node.get("$ref")
    if isinstance(target, str) and (target == "#" or target.startswith("#/")):
        moved["$ref"] = _within(target)
    return moved


def _within(target: str) -> str:
    return "#/$defs/document" + target.removeprefix("#")


def _parts(node: Any, place: str) -> list[tuple[str, Any]]:
    """Lists the schemas in a node, with their places."""
    if not isinstance(node, dict):
        return []
    found: list[tuple[str, Any]] = []
    for key in PLACES:
        members = node.get(key)
        if isinstance(members, dict):
            found += [(f"{place}/{key}/{_escaped(name)}", part) for name, part in members.items()]
    for key in (*LISTS, "items"):
        members = node.get(key)
        if isinstance(members, list):
            found += [(f"{place}/{key}/{index}", part) for index, part in enumerate(members)]
    found += [(f"{place}/{key}", node[key]) for key in ONE if isinstance(node.get(key), dict)]
    return found


def _target(schema: Any, node: Any) -> list[tuple[str, Any]]:
    """Returns the target of a node's reference in the same schema."""
    target = node.get("$ref") if isinstance(node, dict) else None
    if not isinstance(target, str) or not target.startswith("#/"):
        return []
    return [(target, resolved(schema, target))]


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")

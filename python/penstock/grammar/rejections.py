"""What llguidance says of a schema that it cannot follow, in this project's words.

It names neither the place nor what to do. The place is found by asking it for each part of the
schema whether that part alone is refused for the same reason: the deepest such part is named.
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
UNSATISFIABLE = "no document satisfies the schema"  # what `normalize` says

# What it says, as a regular expression, and what that means; `{0}`, `{1}` are what it captured.
_MEANINGS = (
    (
        ENDLESS,
        "no document that ends satisfies the schema: what it must hold holds itself; let the "
        "recursion end, with a member that is not required, a list that may be empty, or `anyOf` "
        "with another alternative",
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
        "no object satisfies the schema: `minProperties` asks for more members than there are "
        "names; lower it, or allow `additionalProperties`",
    ),
    (
        r"Unsatisfiable schema: required property '(.*?)' is unsatisfiable",
        "no object satisfies the schema: no value satisfies the schema of its required member "
        "{0!r}; mend that schema, or do not require the member",
    ),
    (
        r"Unsatisfiable schema: Constant (.*) doesn't match length constraints",
        "no string satisfies the schema: the constant {0} breaks `minLength` or `maxLength`; "
        "change the constant or the bounds",
    ),
    (
        r"Unsatisfiable schema: Regex is empty",
        "no string satisfies the schema: none matches the `pattern` and keeps to `format`, "
        "`minLength` and `maxLength` too; loosen one of them",
    ),
    (
        r"Unsatisfiable schema: (?:All options in anyOf are unsatisfiable|No options in anyOf)",
        "no document satisfies the schema: none satisfies any of the alternatives (`anyOf`, "
        "`oneOf`, `enum` or types) together with what is beside them; mend an alternative",
    ),
    (
        r"Unsatisfiable schema: anyOf is empty",
        "no document satisfies the schema: an empty `anyOf`, `oneOf`, `enum` or `type` allows "
        "none; list what is allowed, or leave it out",
    ),
    (
        r"Unsatisfiable schema: incompatible types",
        "no document satisfies the schema: what must hold together (`allOf`, `$ref` or `enum` and "
        "what is beside them) asks for different types; leave one of them out",
    ),
    (
        r"minimum \((.*?)\) is greater than maximum \((.*?)\)",
        "no number satisfies the schema: its minimum {0} is greater than its maximum {1}; lower "
        "the one or raise the other",
    ),
    (
        r"Unsatisfiable schema: (.*)",
        "no document satisfies the schema ({0}); loosen what contradicts itself",
    ),
    (
        UNSATISFIABLE + "$",
        "no document satisfies the schema: its keywords exclude each other; loosen one of them",
    ),
    (
        r"Unable to determine if regex is empty",
        "it takes too long to tell whether any string matches the `pattern` and keeps to `format`, "
        "`minLength` and `maxLength` too; write the length as a repetition in the pattern, or "
        "leave the bounds out",
    ),
    (
        r"patternProperty regexes /(.*)/ and /(.*)/ are not disjoint",
        "the patterns {0!r} and {1!r} of `patternProperties` match a name in common, so that two "
        "schemas would hold for its member; make each name match one pattern at most",
    ),
    (
        r"can't determine if patternProperty regexes /(.*)/ and /(.*)/ are disjoint",
        "it takes too long to tell whether the patterns {0!r} and {1!r} of `patternProperties` "
        "match a name in common; simplify them, or let each begin with other letters (`^`)",
    ),
    (
        r"oneOf constraints are not supported",
        "the alternatives of `oneOf` may hold for the same document; let them exclude each other, "
        "by type or by a required member with its own `const`, or write `anyOf`",
    ),
    (
        r"min/maxProperties only supported when all keys",
        "`minProperties` and `maxProperties` cannot be kept beside optional members of "
        "`properties`; require all of those, or leave the bounds out",
    ),
    (
        r"circular references with sibling keys are not supported: (?:.*:///)?(.*)",
        "the `$ref` {0!r} leads back to where it stands, with other keywords beside it; leave "
        "those out, or move them to where it leads",
    ),
    (
        r"(?:lookarounds not supported yet|look-around, including look-ahead and look-behind)",
        "a pattern looks around itself (`\\b`, `\\B`, `(?=`, `(?!`, `(?<`, or `^` or `$` in its "
        "middle), which an automaton cannot; write what it means as alternatives",
    ),
    (
        r"backreferences are not supported",
        "a pattern refers to what a group of it matched (`\\1`), which an automaton cannot; write "
        "the alternatives out",
    ),
    (
        r"Unicode property (?:not found|value not found)",
        "a pattern names a Unicode property (`\\p`) that there is not; write one of the Unicode "
        "standard's, such as `\\p{{L}}`",
    ),
    (
        r"regex parse error:.*?error: (.*)",
        "a pattern is no regular expression that can be followed: {0}; mend it (the syntax is that "
        "of JSON Schema, without look-around and backreferences)",
    ),
    (
        r"(?:exceeds size limit|regex too (?:large|big)|too many expressions constructed)",
        "a pattern is too large; use fewer or smaller repetitions",
    ),
    (
        r"Pointer '(.*?)' does not exist",
        "the `$ref` to {0!r} leads to nothing; define what it names",
    ),
    (
        r"Anchor '(.*?)' (?:does not exist|is invalid)",
        "the `$ref` to the anchor {0!r} leads to nothing; define it with `$anchor`",
    ),
    (
        r"(?:Resource '(.*?)' is not present in a registry|Default retriever does not fetch)",
        "a `$ref` (or the `$schema`) leads out of the schema, and nothing is fetched; put what it "
        "names under `$defs`, and refer to it there",
    ),
    (
        r"(?:invalid|Invalid) (?:URI|uri|IRI|reference)|unexpected character at index",
        "an `$id` or a `$ref` is no URI reference; escape what must be escaped in one",
    ),
    (
        r"Unknown specification: (.*)",
        "the `$schema` {0!r} is no draft that is known; name draft 4, 6, 7, 2019-09 or 2020-12",
    ),
    (
        r"Unimplemented keys: \[(.*?)\]",
        "the keywords {0} cannot be kept; leave them out",
    ),
    (
        r"Unknown format: (.*)",
        "the `format` {0!r} cannot be kept; leave it out, or write it as a `pattern`",
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
    (r"Invalid type: (.*)", "`type` names no type of JSON: {0!r}"),
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
        "what must hold together (`allOf`, or `$ref` and what is beside it) is nested too deep, or "
        "holds itself; write it out in one schema",
    ),
    (
        r"schema too large|grammar\) too big|number of symbols\) too big|fuel exhausted|"
        r"lexer precomputation failed|Too many items|too many states|Current row has",
        "the schema is too large: use fewer members, alternatives or repetitions, or split the "
        "request",
    ),
)


def translate(reason: str) -> str:
    """What llguidance's words mean, and what to do."""
    for pattern, meaning in _MEANINGS:
        found = re.search(pattern, reason, re.DOTALL)
        if found is not None:
            return meaning.format(*(one or "" for one in found.groups()))
    return f"llguidance, which would follow the schema, refuses it: {reason}"


@dataclass(frozen=True)
class Cause:
    """Why a schema is refused, and for which part of it."""

    reason: str
    place: str
    part: Any


def explain(schema: Any, reason: str, refusal: Callable[[Any], str | None]) -> str:
    """`reason`, for which a schema is refused, in other words and with its place. `refusal` says
    for what another schema is refused; None if it is not."""
    found = Cause(reason, "#", schema)
    waiting, probed = _parts(schema, "#"), 0
    # Of parts in one another that are refused for the same reason the innermost is the cause.
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
    """Whether what a part is refused for is why the whole is."""
    if _excludes(own) and _excludes(found.reason):
        return _demanded(found, place)
    return translate(own) == translate(found.reason)


def _excludes(reason: str) -> bool:
    return "nsatisfiable" in reason or reason == UNSATISFIABLE


def _demanded(found: Cause, place: str) -> bool:
    """Whether every document must have a document of the part at `place`."""
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
    """The part at a place as a schema of its own: its references still lead where they led."""
    moved = _moved(schema)
    return {"$ref": _within(quote(place, safe="#/~")), "$defs": {"document": moved}}


def _moved(node: Any) -> Any:
    """A schema as it is inside of another one."""
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
    """The schemas in a node, with their places."""
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
    """Where a node refers to in the same schema."""
    target = node.get("$ref") if isinstance(node, dict) else None
    if not isinstance(target, str) or not target.startswith("#/"):
        return []
    return [(target, resolved(schema, target))]


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")

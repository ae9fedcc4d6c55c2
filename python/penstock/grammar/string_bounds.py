"""Distances to the end of texts constrained by a pattern, a format or `multipleOf`.

llguidance's own automaton of the text is searched, so the result matches what llguidance makes of a
pattern.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from penstock.grammar.llguidance_backend import schema_grammar
from penstock.grammar.protocol import GrammarRejected
from penstock.grammar.vocabulary import Vocabulary

LENGTHS = ("minLength", "maxLength")
STRINGS = ("pattern", "format")
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
MOST_STATES = 1 << 16  # of the automaton of one text
MOST_NUMBER = 1 << 14  # of a multiple; nearly all its states are searched, in 0.1 s
MOST_LIMITED = 16  # strings of a schema whose automaton includes `maxLength`
CHARACTER = 4  # maximum bytes of one in its shortest spelling
ASIDE = ("type", "title", "description", "$comment", "default", "examples")


@dataclass(frozen=True)
class EndDistance:
    """Distances in bytes; each byte may be a token."""

    shortest: int  # of the shortest text
    farthest: int  # to an end, from any state


NO_DISTANCE = EndDistance(0, 0)


class StringBounds:
    """The distances of the nodes of one schema."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._own = vocabulary.own
        self._known: dict[str, EndDistance] = {}

    def distance_of(self, node: dict[str, Any]) -> EndDistance:
        """Returns the distance of a node's string or number; NO_DISTANCE if it has no such
        constraint. Raises GrammarRejected."""
        found = NO_DISTANCE
        if _spelt(node):
            found = self._distance({"type": "string", **_string(node)})
        if "multipleOf" in node:
            kind = "integer" if node.get("type") == "integer" else "number"
            number = {key: node[key] for key in ("multipleOf", *BOUNDS) if key in node}
            found = _longer(found, self._distance({"type": kind, **number}))
        for name in node.get("patternProperties", {}):
            found = _longer(found, self._distance({"type": "string", "pattern": name}))
        return found

    def whole(self, schema: Any) -> EndDistance:
        """Returns the largest distance over all texts of a schema, except for those that are too
        complex."""
        shortest, farthest, _ = self._reach(schema, MOST_STATES // 8)
        return EndDistance(shortest, farthest)

    def _distance(self, schema: dict[str, Any]) -> EndDistance:
        text = json.dumps(schema, sort_keys=True)
        if text not in self._known:
            self._known[text] = self._measured(schema)
        return self._known[text]

    def _measured(self, schema: dict[str, Any]) -> EndDistance:
        limited = "maxLength" in schema
        # A length multiplies the states; after many such strings it is dropped at once.
        if not limited or len(self._known) < MOST_LIMITED:
            most = MOST_NUMBER if "multipleOf" in schema else MOST_STATES
            most = MOST_STATES // 8 if limited else most
            shortest, farthest, unsearched = self._reach(schema, most)
            if not unsearched:
                return EndDistance(shortest, farthest)
        if limited:
            # A completion within the length has at most as many characters as one without it.
            free = self._distance({key: schema[key] for key in schema if key != "maxLength"})
            return EndDistance(free.shortest * CHARACTER, free.farthest * CHARACTER)
        raise GrammarRejected(
            f"{_described(schema)} has too many states to compute the shortest completion of a "
            "partial text: use fewer or smaller repetitions or numbers, or disable completion "
            "(`complete` or `guided_complete`: false)"
        )

    def _reach(self, schema: Any, most: int) -> tuple[int, int, int]:
        try:
            return self._own.end_distances(schema_grammar(json.dumps(schema)), most)
        except ValueError:
            return 0, 0, 0  # no text satisfies it, or another check rejects the schema


def merged(nodes: list[dict[str, Any]]) -> bool:
    """Whether a text may be subject to several nodes at once, or to patterns of member names."""
    if not any(_spelt(node) or "patternProperties" in node for node in nodes):
        return False
    return any("patternProperties" in node or _joined(node) for node in nodes)


def _joined(node: dict[str, Any]) -> bool:
    plain = all(_is_string(child) for child in node.get("allOf", []))
    branching = [key for key in ("allOf", "anyOf", "oneOf", "$ref") if key in node]
    siblings = {*STRINGS, *LENGTHS, "properties", "items", "prefixItems", "additionalProperties"}
    return (
        (not plain)
        or len(branching) > 1
        or (branching not in ([], ["allOf"]) and not siblings.isdisjoint(node))
    )


def _spelt(node: dict[str, Any]) -> bool:
    return not set(STRINGS).isdisjoint(_string(node)) or "allOf" in _string(node)


def _string(node: dict[str, Any]) -> dict[str, Any]:
    """Returns a node's keywords for strings."""
    own = {key: node[key] for key in (*STRINGS, *LENGTHS) if key in node}
    others = node.get("allOf", [])
    if others and all(_is_string(child) for child in others):
        own["allOf"] = others
    return own


def _is_string(node: Any) -> bool:
    return isinstance(node, dict) and {*STRINGS, *LENGTHS, *ASIDE}.issuperset(node)


def _longer(one: EndDistance, other: EndDistance) -> EndDistance:
    return EndDistance(max(one.shortest, other.shortest), max(one.farthest, other.farthest))


def _described(schema: Any) -> str:
    """Returns the constraining keywords, with their values."""
    said = schema if isinstance(schema, dict) else {}
    names = ("pattern", "format", "multipleOf", *LENGTHS)
    parts = [f"`{key}` {json.dumps(said[key])[:64]}" for key in names if key in said]
    return " with ".join(parts) if parts else "a string of the schema"

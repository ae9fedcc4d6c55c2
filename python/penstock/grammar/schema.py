"""Chooses the backend of a JSON schema.

outlines converts a schema to one expression, which gives the exact number of tokens to the end, but
it ignores many keywords; it gets only schemas whose every keyword it is known to enforce.
llguidance gets the others. What neither enforces is rewritten (`normalize`) or rejected by name: an
ignored keyword would let invalid documents through.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from penstock.grammar import formats
from penstock.grammar.json_schema.emit import normalize
from penstock.grammar.protocol import GrammarRejected

MOST_BYTES = 256 << 10
MOST_DEPTH = 100
MOST_SIZE = 4000  # of an expression, in approximate characters of its text
KEPT = frozenset(
    (
        "type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "properties", "required",
        "additionalProperties", "patternProperties", "minProperties", "maxProperties", "items",
        "prefixItems", "additionalItems", "minItems", "maxItems", "minLength", "maxLength",
        "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
        "multipleOf",
    )
)  # fmt: skip
SCALARS = frozenset(("string", "integer", "number", "boolean", "null"))
PLACES = ("properties", "patternProperties", "$defs", "definitions")  # name -> schema
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")  # of schemas
ONE = ("items", "additionalProperties", "additionalItems")  # a schema


class _NotExpressible(Exception):
    """Raised where outlines would not enforce all of a schema."""


def parse(text: str) -> Any:
    """Parses a schema and rewrites it into the backends' keywords. Raises GrammarRejected."""
    if len(text) > MOST_BYTES:
        raise GrammarRejected(
            f"the schema has {len(text)} bytes; at most {MOST_BYTES} are possible"
        )
    try:
        schema = json.loads(text, parse_float=_number, parse_constant=_number)
    except (ValueError, RecursionError) as error:
        raise GrammarRejected(f"the schema is not JSON: {error}") from error
    if not isinstance(schema, dict | bool):
        raise GrammarRejected(f"a schema must be an object or a boolean. Given: {text[:64]}")
    return normalize(schema)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise GrammarRejected(f"the schema has the number {text[:32]}, which a double cannot hold")
    return number


def _lists(node: dict[str, Any]) -> list[str]:
    """Returns the keywords whose values are lists of schemas; before draft 2020-12, `items` may
    be one."""
    return [*LISTS, "items"] if isinstance(node.get("items"), list) else [*LISTS]


def _ones(node: dict[str, Any]) -> list[str]:
    """Returns the keywords of `node` whose values are schemas."""
    return [key for key in ONE if key in node and not isinstance(node[key], list)]


def expression(schema: Any) -> str | None:
    """Returns outlines' expression of a checked schema; None if it would not enforce all of it."""
    try:
        size = _Walk(schema).size(schema, ())
    except _NotExpressible:
        return None
    if size > MOST_SIZE:
        return None
    from outlines_core.json_schema import build_regex_from_schema

    try:
        return str(build_regex_from_schema(json.dumps(schema)))
    except (ValueError, TypeError):
        return None


class _Walk:
    """Walks a schema as outlines would, and sums up the size of its expression."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.total = 0

    def size(self, node: Any, inside: tuple[str, ...]) -> int:
        """Returns the size of a node. `inside` are the references that led here, to detect
        recursion."""
        if not isinstance(node, dict) or len(inside) > MOST_DEPTH:
            raise _NotExpressible
        size = self._size(node, asserted(node), inside)
        self.total += size
        if self.total > 10 * MOST_SIZE:  # references may multiply their targets
            raise _NotExpressible
        return size

    def _size(self, node: dict[str, Any], keys: set[str], inside: tuple[str, ...]) -> int:
        if keys == {"$ref"}:
            return self._reference(node["$ref"], inside)
        if keys == {"anyOf"} and node["anyOf"]:
            return sum(self.size(child, inside) for child in node["anyOf"])
        if keys in ({"const"}, {"const", "type"}):
            return _values([node["const"]], node.get("type"))
        if keys in ({"enum"}, {"enum", "type"}):
            return _values(node["enum"], node.get("type"))
        kind = node.get("type")
        if isinstance(kind, list) and keys == {"type"} and kind and SCALARS.issuperset(kind):
            return 8 * len(kind)
        if kind == "object":
            return self._object(node, keys, inside)
        if kind == "array":
            return self._array(node, keys, inside)
        if kind == "string" and keys <= {"type", "minLength", "maxLength"}:
            return 2 + _count(node, "maxLength", _count(node, "minLength", 1))
        if isinstance(kind, str) and kind in SCALARS and keys == {"type"}:
            return 8
        raise _NotExpressible

    def _object(self, node: dict[str, Any], keys: set[str], inside: tuple[str, ...]) -> int:
        properties, required = node.get("properties"), node.get("required", [])
        if not properties or keys - {"type", "properties", "required", "additionalProperties"}:
            raise _NotExpressible
        if not isinstance(node.get("additionalProperties", False), bool):
            raise _NotExpressible
        if not isinstance(required, list) or not set(required) <= set(properties):
            raise _NotExpressible
        if any(json.dumps(name, ensure_ascii=False) != f'"{name}"' for name in properties):
            raise _NotExpressible  # outlines does not escape names
        # Without a required member, outlines lists every choice of the first member: quadratic
        # size.
        copies = 1 if required else len(properties)
        sizes = (len(n) + 5 + self.size(child, inside) for n, child in properties.items())
        return copies * sum(sizes)

    def _array(self, node: dict[str, Any], keys: set[str], inside: tuple[str, ...]) -> int:
        if "items" not in keys or keys - {"type", "items", "minItems", "maxItems"}:
            raise _NotExpressible
        times = max(1, _count(node, "maxItems", _count(node, "minItems", 1)))
        return 2 + times * (2 + self.size(node["items"], inside))

    def _reference(self, target: Any, inside: tuple[str, ...]) -> int:
        if not isinstance(target, str) or target in inside:
            raise _NotExpressible
        parts = target.split("/")
        if len(parts) != 3 or parts[:1] != ["#"] or parts[1] not in ("$defs", "definitions"):
            raise _NotExpressible
        found = self.root.get(parts[1], {}).get(parts[2])
        return self.size(found, (*inside, target))


def for_llguidance(schema: Any) -> Any:
    """Adapts a normalized schema where llguidance would enforce less than it says, in place;
    returns it."""
    for node in list(nodes(schema)):
        formats.keep(node)
    return schema


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Yields the schema and all schemas inside it, except booleans."""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += children(node)


def children(node: dict[str, Any]) -> Iterator[Any]:
    """Yields the schemas in a node, one level deep."""
    for key in PLACES:
        yield from node.get(key, {}).values()
    for key in _lists(node):
        yield from node.get(key, [])
    yield from (node[key] for key in _ones(node))


def literals(node: dict[str, Any]) -> list[Any]:
    """Returns the values of a node's `enum` and `const`."""
    values = node.get("enum", [])
    const = [node["const"]] if "const" in node else []
    return [*values, *const] if isinstance(values, list) else const


def asserted(node: dict[str, Any]) -> set[str]:
    """Returns the keywords of a normalized node, without annotations."""
    return set(KEPT.intersection(node))


def _count(node: dict[str, Any], key: str, otherwise: int) -> int:
    value = node.get(key, otherwise)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _NotExpressible
    return value


def _values(values: Any, kind: Any) -> int:
    """Returns the size of listed scalars. Literal objects go to llguidance, which orders and
    spaces their members."""
    names = {str: "string", bool: "boolean", int: "integer", type(None): "null"}
    if not isinstance(values, list) or not values:
        raise _NotExpressible
    for value in values:
        name = names.get(type(value))
        if name is None or kind not in (None, name):
            raise _NotExpressible
    return sum(len(json.dumps(value)) for value in values)

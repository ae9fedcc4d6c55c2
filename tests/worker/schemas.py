"""JSON schemas that use every keyword which grammars keep, by what is interesting about them."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]


def record(required: int | None = None, **properties: Any) -> Schema:
    """An object of these members alone; the first `required` must be there, or all."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties)[:required],
        "additionalProperties": False,
    }


def listing(items: Any, **keywords: Any) -> Schema:
    return {"type": "array", "items": items, **keywords}


WORD: Schema = {"type": "string", "maxLength": 8}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 99}
# outlines keeps these.
EXPRESSIBLE: dict[str, Schema] = {
    "string": {"type": "string"},
    "lengths": {"type": "string", "minLength": 3, "maxLength": 9},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "scalars": {"type": ["string", "integer", "boolean", "null", "number"]},
    "enum": {"enum": ["red", "deep blue", 3, -7, True, None]},
    "enum of a type": {
        "type": "string",
        "enum": ["\u00e9t\u00e9", 'say "hi"', "back\\slash", "\n"],
    },
    "const": {"const": "only this"},
    "anyOf": {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 4}, {"const": None}]},
    "items": listing({"type": "boolean"}),
    "minItems": listing({"type": "integer"}, minItems=2),
    "maxItems": listing(WORD, maxItems=3),
    "exactly two": listing({"enum": ["a", "b"]}, minItems=2, maxItems=2),
    "lists of lists": listing(listing({"type": "null"}, maxItems=2), minItems=1, maxItems=4),
    "properties": record(name={"type": "string"}, age={"type": "integer"}),
    "optional members": record(1, id={"type": "integer"}, tag=WORD, ok={"type": "boolean"}),
    "no required member": record(0, a={"type": "integer"}, b={"type": "null"}, c=WORD),
    "open object": {"type": "object", "properties": {"a": WORD}, "required": ["a"]},
    "object in object": record(a=record(b=record(c={"type": "integer"}, d={"type": "null"}))),
    "$ref": {
        **record(left={"$ref": "#/$defs/point"}, right={"$ref": "#/$defs/point"}),
        "$defs": {"point": record(x={"type": "integer"}, y={"type": "integer"})},
    },
    "definitions": {
        **record(who={"$ref": "#/definitions/name"}),
        "definitions": {"name": {"type": "string", "minLength": 1, "maxLength": 5}},
    },
    "annotations": {
        **record(a={"type": "integer", "title": "A", "description": "d", "default": 3}),
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "x-order": 1,
    },
}
# llguidance keeps these.
OTHERS: dict[str, Schema] = {
    "anything": {},
    "any object": {"type": "object"},
    "any list": {"type": "array"},
    "minimum": {"type": "integer", "minimum": -12, "maximum": 37},
    "exclusive": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "exclusive zero": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.01},
    "exclusive whole ones": record(
        a={"type": "number", "exclusiveMinimum": 7, "maximum": 7.5},
        b=listing({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}),
    ),
    "multipleOf": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700},
    "minimum alone": record(
        a={"type": "integer", "minimum": 1000}, b={"type": "number", "maximum": 0}
    ),
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
    "pattern inside": record(code={"type": "string", "pattern": "^(ab|cd)+x?$"}, n=COUNT),
    "patternProperties": {
        "type": "object",
        "patternProperties": {"^n_": {"type": "integer"}, "^s_": WORD},
        "additionalProperties": False,
    },
    "additionalProperties": {"type": "object", "additionalProperties": {"type": "integer"}},
    "rest of the members": {
        "type": "object",
        "properties": {"id": COUNT},
        "required": ["id"],
        "additionalProperties": {"type": "boolean"},
    },
    "minProperties": {
        "type": "object",
        "additionalProperties": {"type": "null"},
        "minProperties": 1,
        "maxProperties": 3,
    },
    "prefixItems": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, WORD, {"type": "boolean"}],
        "items": {"type": "null"},
        "minItems": 3,
    },
    "additionalItems": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [{"type": "integer"}, {"type": "null"}],
        "additionalItems": {"type": "boolean"},
        "minItems": 2,
    },
    "oneOf": {"oneOf": [record(a={"type": "integer"}), record(b=WORD), {"type": "null"}]},
    "oneOf by a tag": {
        "oneOf": [
            record(kind={"const": "dot"}, x=COUNT),
            record(kind={"const": "line"}, x=COUNT, length=COUNT),
        ]
    },
    "allOf": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ]
    },
    "bounds from two places": {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 50}]},
    "recursive list": {
        "$ref": "#/$defs/tree",
        "$defs": {"tree": record(v=COUNT, kids=listing({"$ref": "#/$defs/tree"}))},
    },
    "linked list": {
        "$ref": "#/$defs/link",
        "$defs": {
            "link": record(
                v={"type": "null"}, next={"anyOf": [{"$ref": "#/$defs/link"}, {"type": "null"}]}
            )
        },
    },
    "two that need each other": {
        "$ref": "#/$defs/term",
        "$defs": {
            "term": {"anyOf": [COUNT, {"$ref": "#/$defs/sum"}]},
            "sum": record(left={"$ref": "#/$defs/term"}, right={"$ref": "#/$defs/term"}),
        },
    },
    "objects in enum": {"enum": [{"a": [1, 2], "b": None}, ["x"], {}]},
    "names to escape": record(**{'q"uote': COUNT, "new\nline": COUNT, "\u00fc": COUNT}),
    "all together": record(
        3,
        id={"type": "string", "format": "uuid"},
        when={"type": "string", "format": "date-time"},
        lines=listing(record(sku={"type": "string", "pattern": "^[a-z]{3}$"}, n=COUNT), maxItems=5),
        note={"anyOf": [{"type": "string"}, {"type": "null"}]},
    ),
}
FORMATS = (
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
    "uri-reference", "uri-template", "json-pointer", "relative-json-pointer",
)  # fmt: skip
OTHERS |= {f"format {name}": {"type": "string", "format": name} for name in FORMATS}


def composed(number: int) -> Schema:
    """A schema put together at random of the others, three levels deep."""
    draw = random.Random(number)
    leaves = [
        schema
        for schema in (EXPRESSIBLE | OTHERS).values()
        if not {"$defs", "definitions", "$schema"} & set(schema) and schema
    ]

    def node(depth: int) -> Schema:
        kind = draw.choice(("record", "listing", "anyOf")) if depth else "leaf"
        if kind == "record":
            members = {
                name: node(depth - 1) for name in draw.sample("abcdefgh", draw.randint(1, 4))
            }
            return record(draw.randint(1, len(members)), **members)
        if kind == "listing":
            return listing(node(depth - 1), minItems=draw.randint(0, 2), maxItems=3)
        if kind == "anyOf":
            return {"anyOf": [node(depth - 1), node(depth - 1)]}
        return draw.choice(leaves)

    return node(3)

"""Schemas by keyword, with documents that must be possible under each and some that must not."""

from __future__ import annotations

from typing import Any, NamedTuple

from schemas import record

OLD = {"$schema": "http://json-schema.org/draft-07/schema#"}
OLDEST = {"$schema": "http://json-schema.org/draft-04/schema#"}
TEXT = {"type": "string", "maxLength": 6}
NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}


class Case(NamedTuple):
    schema: Any
    possible: list[Any]
    impossible: list[Any]


def thing(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": NUMBER, "b": TEXT, "c": {}}, **keywords}


KIND = {"properties": {"kind": {"const": "dot"}}}
SHAPE = {
    "type": "object",
    "properties": {"kind": {"enum": ["dot", "line"]}, "r": NUMBER, "n": NUMBER},
    "required": ["kind"],
    "additionalProperties": False,
}
CASES: dict[str, Case] = {
    "not of types": Case(
        {"not": {"type": ["object", "array", "string"]}}, [1, None], ["a", [], {}]
    ),
    "not of integers": Case(
        {
            "type": "number",
            "exclusiveMinimum": 0,
            "exclusiveMaximum": 1,
            "not": {"type": "integer"},
        },
        [0.5],
        [0, 1],
    ),
    "not of a bound": Case(
        {"type": "number", "minimum": 0, "maximum": 0.5, "not": {"const": 0}},
        [0.5, 0.25, 0.0625],
        [0, 0.0, -0.5, 0.75],
    ),
    "multiples above a bound": Case(
        {"type": "number", "exclusiveMinimum": 7, "maximum": 7.5, "multipleOf": 0.25},
        [7.25],
        [7, 7.125, 7.75],
    ),
    "not of values": Case(
        {"type": ["string", "integer", "null", "boolean"], "not": {"enum": ["ab", "a", 3, None]}},
        ["", "b", "abc", "aa", 2, 4, True],
        ["ab", "a", 3, None],
    ),
    "not of a beginning": Case(
        {"type": "string", "not": {"pattern": "^x-"}, "maxLength": 4},
        ["x", "y-", "xx-"],
        ["x-", "x-a"],
    ),
    "not of bounds": Case(
        {"type": "integer", "not": {"minimum": 4, "maximum": 6}}, [3, 7], [4, 5, 6]
    ),
    "not of a member": Case(
        thing(**{"not": {"required": ["a"]}}), [{}, {"b": "x"}], [{"a": 1}, {"a": 1, "b": ""}]
    ),
    "not of not": Case({"not": {"not": {"type": "null"}}}, [None], [1, {}]),
    "if": Case(
        {**SHAPE, "if": KIND, "then": {"required": ["r"]}, "else": {"required": ["n"]}},
        [{"kind": "dot", "r": 1}, {"kind": "line", "n": 2}, {"kind": "line", "r": 1, "n": 2}],
        [{"kind": "dot"}, {"kind": "dot", "n": 1}, {"kind": "line", "r": 1}],
    ),
    "if without then": Case(
        {**SHAPE, "if": KIND, "else": {"properties": {"r": False}}},
        [{"kind": "dot", "r": 1}, {"kind": "line"}],
        [{"kind": "line", "r": 1}],
    ),
    "oneOf that overlap": Case(
        thing(oneOf=[{"required": ["a"]}, {"required": ["b"]}]),
        [{"a": 1}, {"b": "x"}],
        [{}, {"a": 1, "b": "x"}],
    ),
    "oneOf numbers": Case(
        {"oneOf": [{"type": "integer", "minimum": 5}, {"type": "integer", "maximum": 9}]},
        [4, 10],
        [5, 7, 9],
    ),
    "oneOf formats, one by its older name": Case(
        {**OLDEST, "oneOf": [{"type": "string", "format": name} for name in ("host-name", "ipv6")]},
        ["example", "example-org"],
        ["::", "::1"],
    ),
    "oneOf a text and a format": Case(
        {"oneOf": [{"type": "string"}, {"type": "string", "format": "date"}, {"type": "null"}]},
        ["abc", None],
        ["2024-02-02"],
    ),
    "oneOf closed ones": Case(
        {"oneOf": [thing(additionalProperties=False), record(0, b=TEXT, d=NUMBER)]},
        [{"a": 1}, {"d": 1}, {"a": 1, "b": "x"}, {"b": "x", "d": 2}],
        [{}, {"b": "x"}],
    ),
    "not of other members": Case(
        {**thing(), "not": {"additionalProperties": False, "properties": {"a": {}}}},
        [{"b": "x"}, {"a": 1, "c": 1}],
        [{}, {"a": 1}],
    ),
    "a member that its pattern says": Case(
        {
            "type": "object",
            "properties": {"a1": {"$ref": "#"}},
            "patternProperties": {"^a": {"$ref": "#"}},
            "additionalProperties": False,
        },
        [{}, {"a1": {"a2": {}}}],
        [{"a1": 1}, {"b": {}}],
    ),
    "anyOf that overlap": Case(
        {"anyOf": [{"type": "integer", "minimum": 5}, {"type": "integer", "maximum": 9}]},
        [4, 5, 9, 10],
        ["a"],
    ),
    "allOf of closed ones": Case(
        {"allOf": [thing(additionalProperties=False), thing(required=["a"])]},
        [{"a": 1}, {"a": 1, "b": "x"}],
        [{"b": "x"}, {"a": 1, "d": 1}],
    ),
    "uniqueItems of a few": Case(
        {"type": "array", "items": {"enum": ["x", "y", "z"]}, "uniqueItems": True},
        [[], ["y"], ["x", "z"], ["x", "y", "z"]],
        [["x", "x"], ["x", "y", "x"]],
    ),
    "uniqueItems of many": Case(
        {"type": "array", "items": {"enum": list(range(20))}, "uniqueItems": True, "minItems": 2},
        [[0, 19], [1, 8, 15]],
        [[3, 3], [4], [0, 0, 0]],
    ),
    "uniqueItems of texts": Case(
        {"type": "array", "items": TEXT, "uniqueItems": True}, [[], ["a"]], [["a", "a"]]
    ),
    "contains": Case(
        {"type": "array", "items": {"type": ["integer", "string"]}, "contains": {"type": "string"}},
        [["a"], ["a", 1, 2]],
        [[], [1, 2]],
    ),
    "minContains": Case(
        {"type": "array", "contains": {"const": 1}, "minContains": 2, "maxContains": 3},
        [[1, 1], [1, 1, 1]],
        [[1], [1, 1, 1, 1]],
    ),
    "dependentRequired": Case(
        thing(dependentRequired={"a": ["b"]}), [{}, {"b": "x"}, {"a": 1, "b": "x"}], [{"a": 1}]
    ),
    "dependentSchemas": Case(
        thing(dependentSchemas={"a": {"properties": {"b": {"const": "yes"}}, "required": ["b"]}}),
        [{"b": "no"}, {"a": 1, "b": "yes"}],
        [{"a": 1}, {"a": 1, "b": "no"}],
    ),
    "dependencies": Case(
        {**OLD, **thing(dependencies={"a": ["b"], "b": {"required": ["c"]}})},
        [{}, {"c": 1}, {"a": 1, "b": "x", "c": 1}],
        [{"a": 1}, {"b": "x"}, {"a": 1, "b": "x"}],
    ),
    "propertyNames": Case(
        {"type": "object", "propertyNames": {"pattern": "^[a-c]$"}, "additionalProperties": NUMBER},
        [{}, {"a": 1}, {"b": 1, "c": 2}],
        [{"d": 1}, {"ab": 1}],
    ),
    "propertyNames of a list": Case(
        {"type": "object", "propertyNames": {"enum": ["x", "y"]}},
        [{"x": 1}, {"x": 1, "y": 2}],
        [{"z": 1}],
    ),
    "propertyNames of lengths": Case(
        {"type": "object", "propertyNames": {"minLength": 2, "maxLength": 3}},
        [{"ab": 1}],
        [{"a": 1}],
    ),
    "minProperties": Case(
        thing(minProperties=2, additionalProperties=False),
        [{"a": 1, "b": "x"}, {"b": "x", "c": 1}, {"a": 1, "b": "x", "c": None}],
        [{}, {"a": 1}, {"c": 1}],
    ),
    "minProperties with one name": Case(
        {
            "type": "object",
            "properties": {"a": NUMBER},
            "minProperties": 2,
            "additionalProperties": TEXT,
        },
        [{"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": ""}],
        [{}, {"a": 1}, {"b": "x"}, {"a": 1, "b": 2}],
    ),
    "minProperties beside a required one": Case(
        thing(minProperties=3, maxProperties=3, required=["b"]),
        [{"a": 1, "b": "x", "c": None}, {"a": 1, "b": "x", "d": 1}, {"b": "", "c": 1, "d": 1}],
        [{"b": "x"}, {"b": "x", "d": 1}, {"a": 1, "b": "x", "c": None, "d": 1}],
    ),
    "minProperties with a pattern": Case(
        {
            "type": "object",
            "properties": {"a1": {}},
            "patternProperties": {"^a": NUMBER},
            "minProperties": 2,
            "additionalProperties": False,
        },
        [{"a1": 1, "a2": 2}],
        [{"a1": 1}, {"a1": "x", "a2": 2}, {"a1": 1, "b": 2}],
    ),
    "maxProperties": Case(
        thing(maxProperties=1, minProperties=1, additionalProperties=False),
        [{"a": 1}, {"c": 1}],
        [{}, {"a": 1, "b": "x"}],
    ),
    "maxProperties beside required ones": Case(
        thing(maxProperties=2, required=["a"]),
        [{"a": 1}, {"a": 1, "c": 2}],
        [{"a": 1, "b": "", "c": 2}],
    ),
    "patterns that meet": Case(
        {
            "type": "object",
            "patternProperties": {"^a": {"minimum": 5}, "b$": {"type": "integer"}},
            "additionalProperties": False,
        },
        [{"ab": 7}],
        [{"ab": 3}, {"cb": "x"}, {"c": 1}],
    ),
    "unevaluatedProperties": Case(
        {
            "type": "object",
            "properties": {"a": NUMBER},
            "anyOf": [{"properties": {"b": TEXT}, "required": ["b"]}, {"maxProperties": 1}],
            "unevaluatedProperties": False,
        },
        [{"a": 1}, {"a": 1, "b": "x"}],
        [{"c": 1}, {"b": "x", "c": 1}],
    ),
    "unevaluatedItems": Case(
        {
            "type": "array",
            "prefixItems": [NUMBER],
            "allOf": [{"prefixItems": [{}, TEXT]}],
            "unevaluatedItems": False,
        },
        [[], [1], [1, "a"]],
        [[1, "a", 2], ["a"]],
    ),
    "unevaluatedProperties beside not": Case(
        {
            "type": "object",
            "properties": {"a": NUMBER},
            "not": {"not": {"properties": {"b": {"const": 1}}, "required": ["b"]}},
            "unevaluatedProperties": {"type": "integer"},
        },
        [{"a": 1, "b": 1}],
        [{"a": 1}, {"b": 1, "c": "x"}],
    ),
    "unevaluatedItems beside not": Case(
        {
            "type": "array",
            "not": {"not": {"prefixItems": [True, {"const": "a"}]}},
            "unevaluatedItems": {"type": "string"},
        },
        [["x", "a"]],
        [[1, "a"]],
    ),
    "a schema of schemas": Case(
        {"$ref": "https://json-schema.org/draft/2019-09/schema"},
        [{"type": "object"}],
        [{"type": 1}, {"$defs": {"a": {"type": 1}}}],
    ),
    "multiples of two": Case(
        {
            "type": "integer",
            "allOf": [{"multipleOf": 6}, {"multipleOf": 4}],
            "maximum": 99,
            "minimum": 0,
        },
        [0, 12, 96],
        [6, 4, 18],
    ),
    "large bounds": Case(
        {"type": "integer", "maximum": 9223372036854775807, "minimum": 9007199254740993},
        [9007199254740996],
        [9007199254740992, 9223372036854775808],
    ),
    "draft 4 bounds": Case(
        {**OLDEST, "type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 9},
        [4, 9],
        [3, 10],
    ),
    "draft 4 items": Case(
        {**OLDEST, "type": "array", "items": [NUMBER, TEXT], "additionalItems": {"type": "null"}},
        [[1, "a"], [1, "a", None]],
        [["a"], [1, "a", 2]],
    ),
    "draft 7 siblings": Case(
        {
            **OLD,
            "type": "object",
            "properties": {"a": {"$ref": "#/definitions/n", "maximum": 1}},
            "required": ["a"],
            "definitions": {"n": NUMBER},
        },
        [{"a": 50}],
        [{"a": 100}],
    ),
    "siblings of a reference": Case(
        {"$ref": "#/$defs/n", "maximum": 7, "$defs": {"n": NUMBER}}, [7], [8, -1]
    ),
    "anchors": Case(
        {
            "type": "array",
            "items": {"$ref": "#here"},
            "$defs": {"x": {"$anchor": "here", **NUMBER}},
        },
        [[1, 2]],
        [["a"]],
    ),
    "draft 4 identifiers": Case(
        {
            **OLDEST,
            "id": "http://example.com/root.json",
            "type": "array",
            "items": {"$ref": "n.json"},
            "definitions": {"x": {"id": "n.json", **NUMBER}},
        },
        [[1]],
        [["a"]],
    ),
    "$dynamicRef": Case(
        {
            "$id": "https://example.com/tree",
            "$dynamicAnchor": "node",
            "type": "object",
            "properties": {"kids": {"type": "array", "items": {"$dynamicRef": "#node"}}},
            "additionalProperties": False,
        },
        [{}, {"kids": [{}, {"kids": []}]}],
        [{"kids": [1]}, {"x": 1}],
    ),
    "a tree with a title": Case(
        {
            "type": "object",
            "properties": {"next": {"allOf": [{"$ref": "#"}, {"title": "t"}]}, "v": NUMBER},
            "additionalProperties": False,
        },
        [{}, {"next": {"next": {"v": 1}}}],
        [{"next": 1}, {"next": {"v": "x"}}],
    ),
    "nullable asserts nothing": Case({"type": "integer", "nullable": True}, [1], [None]),
    "required as in draft 3": Case(
        {"type": "object", "properties": {"a": {"type": "integer", "required": True}, "b": TEXT}},
        [{"a": 1}],
        [{}, {"b": "x"}],
    ),
    "pointers": Case({"type": "string", "format": "json-pointer"}, ["", "/a/b~1"], ["a", "/~2"]),
    "other formats": Case(
        {"type": "string", "format": "uri-reference"}, ["a/b?c#d", "/x"], [" ", "a b"]
    ),
}

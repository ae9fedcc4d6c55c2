"""JSON schemas that tests share."""

from __future__ import annotations

from typing import Any

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["a", "b c", "d"]}, "maxItems": 3},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}

# Recursive: too much for a table of states, so grammars of it are llguidance's.
TREE: dict[str, Any] = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "size": {"type": "integer", "minimum": 10, "maximum": 99},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["size", "kids"],
            "additionalProperties": False,
        }
    },
}

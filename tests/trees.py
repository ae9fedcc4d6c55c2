"""A recursive JSON schema: too much for a table of states, so guides of it are llguidance's."""

from __future__ import annotations

from typing import Any

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

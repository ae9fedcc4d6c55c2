"""Which schemas are refused, and in which words; what an unknown keyword does."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from penstock.grammar.compile import Compiler
from penstock.grammar.protocol import GrammarKind, GrammarRejected, GrammarSpec
from test_tool_call_grammars import compiler

__all__ = ["compiler"]
ANNOTATIONS: dict[str, Any] = {
    "nullable": True, "id": "person", "$comment": "c", "markdownDescription": "d", "x-order": 1,
    "x-guidance": {"lenient": True}, "strict": True, "name": "n", "version": 2, "example": 1,
    "format": "colour", "enumNames": ["a"], "links": [{"href": "/"}], "then": False, "else": False,
    "minContains": 4, "uniqueItems": False, "$vocabulary": {}, "$dynamicAnchor": "a",
    "contentMediaType": "text/html", "deprecated": True, "discriminator": {"propertyName": "k"},
}  # fmt: skip


@pytest.mark.parametrize("kind", ["string", "integer", "object"])
@pytest.mark.parametrize("keyword", ANNOTATIONS)
def test_annotation_keywords_do_not_change_the_grammar(
    compiler: Compiler, keyword: str, kind: str
) -> None:
    """In schemas for either backend."""
    for more in ({}, {"minimum": 3, "pattern": "^a+$", "minProperties": 1}):
        plain = {"type": kind, **more}
        wanted = [{**plain, keyword: ANNOTATIONS[keyword]}, plain]
        needed = [
            shortest(compiler, {"properties": {"a": each}, "type": "object"}) for each in wanted
        ]
        assert needed[0] == needed[1]


def shortest(compiler: Compiler, schema: Any) -> Any:
    made = compiler.compile(GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema), True))
    return type(made), getattr(made, "growth", None)


REFUSED: dict[str, Any] = {
    "uniqueItems": {"type": "array", "uniqueItems": True, "minItems": 2},
    "contains": {"contains": {"type": "null"}, "items": {"type": "array"}, "type": "array"},
    "not": {"type": "string", "not": {"pattern": "a.*b"}},
    "$ref": {"$ref": "https://example.com/schema"},
    "minLength": {"minLength": "3"},
}


@pytest.mark.parametrize("keyword", REFUSED)
def test_unsupported_keywords_are_named(compiler: Compiler, keyword: str) -> None:
    schema = {"type": "object", "properties": {"a": REFUSED[keyword]}}
    with pytest.raises(GrammarRejected, match=rf"`{re.escape(keyword)}`.*\(in `#/properties/a`\)"):
        shortest(compiler, schema)

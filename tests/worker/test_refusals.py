"""Refusals by llguidance become messages of this project, with place and remedy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from penstock.grammar import rejections
from penstock.grammar.compile import Compiler
from penstock.grammar.protocol import GrammarKind, GrammarRejected, GrammarSpec
from schemas import COUNT, listing, record
from test_tool_call_grammars import compiler, wanted

__all__ = ["compiler"]
NONE = {"type": "string", "minLength": 5, "maxLength": 3}
LINK = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
SAID: list[tuple[Any, str, str]] = [
    (LINK, "no finite document", "#/properties/next"),
    (NONE, "`minLength` 5 is greater than `maxLength` 3", "#"),
    (record(a=NONE), "`minLength` 5 is greater than `maxLength` 3", "#/properties/a"),
    (
        record(a=listing(record(**{"b/c": NONE}), minItems=1)),
        "`minLength` 5",
        "a/items/properties/b~1c",
    ),
    (record(a=listing({}, minItems=5, maxItems=3)), "`minItems` 5", "#/properties/a"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum 5 is greater than", "#"),
    ({"type": "object", "minProperties": 3, "maxProperties": 1}, "`minProperties`", "#"),
    ({**record(a=COUNT, b=COUNT), "maxProperties": 1}, "`required` has more names", "#"),
    ({**record(a=COUNT), "minProperties": 3}, "more members than there are names", "#"),
    ({"type": "string", "const": "abc", "maxLength": 2}, 'the constant "abc"', "#"),
    ({"enum": []}, "an empty `anyOf`", "#"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "different types", "#"),
    (record(a={"type": "string", "not": {}}), "its keywords exclude each other", "#/properties/a"),
    ({"type": "string", "pattern": "^a$", "minLength": 3}, "none matches the `pattern`", "#"),
    (
        {"type": "string", "pattern": "^[a-z].*", "minLength": 100, "maxLength": 255},
        "too long to decide whether any string matches",
        "#",
    ),
    (
        record(a={"type": "string", "pattern": r"\bfoo\b"}),
        r'the `pattern` "\\bfoo\\b" uses look-around',
        "#/properties/a",
    ),
    (listing({"type": "string", "pattern": "^(?!foo)"}), "uses look-around", "#/items"),
    (
        record(b={"$ref": "#/$defs/x"}) | {"$defs": {"x": {"type": "string", "pattern": "("}}},
        "unclosed group",
        "#/$defs/x",
    ),
    ({"type": "string", "pattern": r"(a)\1"}, "uses a backreference", "#"),
    ({"type": "string", "pattern": r"\p{Nope}"}, "an unknown Unicode property", "#"),
    ({"type": "number", "multipleOf": 1e-30}, "too many digits", "#"),
    ({"type": "integer", "minimum": 1e30}, "bounds of a number", "#"),
]


@pytest.mark.parametrize(("schema", "words", "place"), SAID, ids=lambda value: str(value)[:24])
def test_refusal_names_the_place_and_a_remedy(
    compiler: Compiler, schema: Any, words: str, place: str
) -> None:
    with pytest.raises(GrammarRejected) as refused:
        compiler.compile(GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema), True))
    text = str(refused.value)
    assert words in text
    assert text.endswith(f"{place}`)")
    assert "llguidance" not in text and "nsatisfiable" not in text


@pytest.mark.parametrize(
    "keywords",
    [
        {"minProperties": 2},
        {"minProperties": 2, "maxProperties": 4, "additionalProperties": COUNT},
        {"minProperties": 3, "properties": {"b": COUNT}},
        {"minProperties": 2, "patternProperties": {"^b": {}}, "additionalProperties": False},
    ],
    ids=str,
)
def test_several_unnamed_members_cannot_be_required(
    compiler: Compiler, keywords: dict[str, Any]
) -> None:
    """A grammar does not compare names, and members of equal names count as one."""
    schema = record(a={"type": "object", **keywords})
    with pytest.raises(GrammarRejected) as refused:
        compiler.compile(GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema), True))
    text = str(refused.value)
    assert "`minProperties` (in `#/properties/a`) is not supported" in text
    assert "their names may be equal" in text


def test_a_refused_tool_is_named(compiler: Compiler) -> None:
    with pytest.raises(GrammarRejected) as refused:
        compiler.compile(wanted("hermes", {"f": record(a=COUNT), "g": record(a=NONE)}))
    assert str(refused.value).startswith("the parameters of `g`: no string satisfies")
    assert str(refused.value).endswith("(in `#/properties/a`)")


def test_unknown_llguidance_refusal_is_quoted(compiler: Compiler) -> None:
    def refusal(schema: Any) -> str | None:
        return "the moon is full" if schema["$ref"].endswith("/b") else None

    text = rejections.explain(record(a=COUNT, b=COUNT), "the moon is full", refusal)
    assert text == "llguidance rejects the schema: the moon is full (in `#/properties/b`)"


def test_unbounded_number_is_refused_with_its_reason(compiler: Compiler) -> None:
    with pytest.raises(GrammarRejected, match="which a double cannot hold"):
        compiler.compile(GrammarSpec(GrammarKind.JSON_SCHEMA, '{"const": 1e400}', True))

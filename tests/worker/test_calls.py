"""Forced tool calls: whatever is drawn from the masks, they are whole and keep their schemas."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from jsonschema import validate
from penstock.guidance import automaton, earley
from penstock.guidance.compile import Compiler
from penstock.guidance.native import NativeGuide
from penstock.guidance.protocol import Compiled, Ends, Kind, Refused, Wanted, words
from penstock.guidance.vocabulary import Vocabulary
from test_guides import BROOK, EOS
from trees import TREE

VOCAB = 4096
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["c", "f"]}},
    "required": ["city"],
}
PLAIN = {"weather": CITY, "now": {"type": "object", "properties": {}}}
DEEP = {
    **PLAIN,
    "grow": {
        "type": "object",
        "properties": {"root": {"$ref": "#/$defs/node"}, "note": {"type": "string"}},
        "required": ["root"],
        "additionalProperties": False,
        "$defs": TREE["$defs"],
    },
}
# What the router says of each format, but for names and schemas.
FORMATS = {
    "hermes": ("", "\n", "", '<tool_call>\n{"name": "%s", "arguments": ', "}\n</tool_call>"),
    "llama": ("", "; ", "", '{"name": "%s", "parameters": ', "}"),
    "mistral": ("[", ", ", "]", '{"name": "%s", "arguments": ', "}"),
    "pythonic": ("[", ", ", "]", "%s(**", ")"),
}


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(Vocabulary(BROOK / "tokenizer.json", VOCAB))


def wanted(form: str, schemas: dict[str, Any], many: bool = True) -> Wanted:
    begin, between, end, before, after = FORMATS[form]
    calls = [
        {"name": name, "before": before % name, "schema": schema, "after": after}
        for name, schema in schemas.items()
    ]
    frame = {"begin": begin, "between": between, "end": end, "many": many, "calls": calls}
    return Wanted(Kind.CALLS, json.dumps(frame), complete=True)


def guide(compiler: Compiler, text: Wanted) -> NativeGuide:
    made = compiler.compile(text)
    if isinstance(made, earley.Grammar):
        return earley.guide(made, compiler.vocabulary)
    return automaton.guide(made, compiler.vocabulary, complete=True)


def drawn(compiler: Compiler, made: Compiled, most: int, rng: np.random.Generator) -> str:
    """A text of at most `most` tokens, each any that the mask allows."""
    cursor, out = made.start(Ends((EOS[0], EOS[1]), most)), b""
    for _ in range(most):
        row = np.zeros(words(VOCAB), np.int32)
        cursor.fill(row)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        token = int(rng.choice(allowed))
        if token in EOS:
            break
        out += compiler.vocabulary.tokens[token]
        cursor.advance(token)
    return out.decode("utf-8", "replace")


def called(text: str, form: str, schemas: dict[str, Any]) -> list[str]:
    """The names of the calls that `text` is; fails if it is anything else."""
    begin, between, end, before, after = FORMATS[form]
    place, names = len(begin), []
    assert text.startswith(begin)
    while True:
        name = next(n for n in schemas if text.startswith(before % n, place))
        names.append(name)
        place += len(before % name)
        document, place = json.JSONDecoder().raw_decode(text, place)
        validate(document, schemas[name])
        assert text.startswith(after, place)
        place += len(after)
        if text[place:] == end:
            return names
        assert text.startswith(between, place)
        place += len(between)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("schemas", [PLAIN, DEEP], ids=["automaton", "llguidance"])
def test_calls_are_valid_also_when_cut_off(
    compiler: Compiler, form: str, schemas: dict[str, Any]
) -> None:
    text = wanted(form, schemas)
    assert isinstance(compiler.compile(text), earley.Grammar) == (schemas is DEEP)
    made = guide(compiler, text)
    rng = np.random.default_rng(1)
    names, several = set(), 0
    for _ in range(30):
        most = int(rng.integers(made.shortest, 120))
        found = called(drawn(compiler, made, most, rng), form, schemas)
        names.update(found)
        several += len(found) > 1
    assert names == set(schemas)
    assert several or form != "pythonic"


def test_one_call_is_one(compiler: Compiler) -> None:
    made = guide(compiler, wanted("pythonic", DEEP, many=False))
    rng = np.random.default_rng(2)
    for _ in range(10):
        text = drawn(compiler, made, 90, rng)
        assert len(called(text, "pythonic", DEEP)) == 1


def test_arguments_are_an_object_whatever_the_schema_says(compiler: Compiler) -> None:
    rng = np.random.default_rng(3)
    for loose in ({}, {"properties": {"a": {"type": "integer"}}}, {"$ref": "#/$defs/a"}):
        schema = {**loose, "$defs": {"a": {"minProperties": 1}}}
        made = guide(compiler, wanted("llama", {"f": schema}))
        for _ in range(5):
            text = drawn(compiler, made, 60, rng)
            assert '"parameters": {' in text
            assert called(text, "llama", {"f": schema})


def test_a_schema_that_cannot_be_kept_is_refused_by_the_tools_name(compiler: Compiler) -> None:
    pairs = {"type": "array", "uniqueItems": True, "minItems": 2}
    bad = {"type": "object", "properties": {"a": pairs}}
    with pytest.raises(Refused, match=r"`odd`.*`uniqueItems`.*#/properties/a"):
        compiler.compile(wanted("hermes", {**PLAIN, "odd": bad}))


def test_a_refusal_says_what_a_pattern_may_not_have(compiler: Compiler) -> None:
    behind = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=x)y"}}}
    text = wanted("hermes", {**PLAIN, "f": {**behind, "minProperties": 1}})
    with pytest.raises(Refused, match="looks around itself"):
        guide(compiler, text)


def test_many_tools_are_steered_no_sooner_than_few(compiler: Compiler) -> None:
    """Inside a string no tool is chosen: a call is not ended there for want of tokens for one."""
    schemas = {**{f"tool_{index}": CITY for index in range(11)}, "grow": DEEP["grow"]}
    text = wanted("hermes", schemas)
    assert isinstance(compiler.compile(text), earley.Grammar)
    made = guide(compiler, text)
    begun = b'<tool_call>\n{"name": "tool_3", "arguments": {"city": "'
    row = np.zeros(words(VOCAB), np.int32)
    for left, free in ((60, True), (20, False)):
        cursor = made.start(Ends((EOS[0], EOS[1]), left), begun)
        cursor.fill(row)
        able = np.unpackbits(row.view(np.uint8), bitorder="little").sum()
        assert (able > 1000) == free
    rng = np.random.default_rng(11)
    for _ in range(12):
        most = int(rng.integers(made.shortest, 120))
        assert called(drawn(compiler, made, most, rng), "hermes", schemas)

"""Forced tool calls: whatever is drawn from the masks, they are whole and keep their schemas."""

from __future__ import annotations

import json
from copy import copy
from typing import Any

import numpy as np
import pytest
from jsonschema import validate
from penstock.grammar import automaton, llguidance_backend, tool_calls
from penstock.grammar.compile import Compiler
from penstock.grammar.native import NativeGrammar
from penstock.grammar.protocol import (
    CompiledGrammar,
    EndConditions,
    GrammarKind,
    GrammarRejected,
    GrammarSpec,
    words,
)
from penstock.grammar.vocabulary import Vocabulary
from test_grammars import BROOK, EOS
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
# What the router sends for each format, without names and schemas.
FORMATS = {
    "hermes": ("", "\n", "", '<tool_call>\n{"name": "%s", "arguments": ', "}\n</tool_call>"),
    "llama": ("", "; ", "", '{"name": "%s", "parameters": ', "}"),
    "mistral": ("[", ", ", "]", '{"name": "%s", "arguments": ', "}"),
    "pythonic": ("[", ", ", "]", "%s(**", ")"),
}


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(Vocabulary(BROOK / "tokenizer.json", VOCAB))


def wanted(form: str, schemas: dict[str, Any], many: bool = True) -> GrammarSpec:
    begin, between, end, before, after = FORMATS[form]
    calls = [
        {"name": name, "before": before % name, "schema": schema, "after": after}
        for name, schema in schemas.items()
    ]
    frame = {"begin": begin, "between": between, "end": end, "many": many, "calls": calls}
    return GrammarSpec(GrammarKind.CALLS, json.dumps(frame), complete=True)


def compile_grammar(compiler: Compiler, text: GrammarSpec) -> NativeGrammar:
    made = compiler.compile(text)
    if isinstance(made, llguidance_backend.LlguidanceGrammar):
        return llguidance_backend.native_grammar(made, compiler.vocabulary)
    return automaton.native_grammar(made, compiler.vocabulary, complete=True)


def drawn(compiler: Compiler, made: CompiledGrammar, most: int, rng: np.random.Generator) -> str:
    """A text of at most `most` tokens, each any that the mask allows."""
    matcher, out = made.start(EndConditions((EOS[0], EOS[1]), most)), b""
    for _ in range(most):
        row = np.zeros(words(VOCAB), np.int32)
        matcher.fill(row)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        token = int(rng.choice(allowed))
        if token in EOS:
            break
        out += compiler.vocabulary.tokens[token]
        matcher.advance(token)
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


@pytest.mark.parametrize(
    ("mark", "special", "text"),
    [
        ("<a>", (7,), ""),
        ("<a><b>", (7, 5), ""),
        ("<b>!", (6,), ""),  # the longest name
        ("<a>x", (), "<a>x"),
        ("x", (), "x"),
        ("", (), ""),
    ],
)
def test_mark_before_the_calls_is_special_tokens_or_text(
    compiler: Compiler, mark: str, special: tuple[int, ...], text: str
) -> None:
    vocabulary = copy(compiler.vocabulary)
    vocabulary.special_tokens = {b"<a>": 7, b"<b>": 5, b"<b>!": 6}
    marked = Compiler(vocabulary)
    frame = json.loads(wanted("mistral", PLAIN).text)
    asked = GrammarSpec(GrammarKind.CALLS, json.dumps({**frame, "mark": mark}), complete=True)
    made = tool_calls.framed(compile_grammar(marked, asked), asked.text, vocabulary)
    matcher = made.start(EndConditions((EOS[0], EOS[1]), 60))
    row = np.zeros(words(VOCAB), np.int32)
    for token in special:
        matcher.fill(row)
        assert np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")) == [token]
        matcher.advance(token)
    for byte in f"{text}[".encode():
        matcher.fill(row)
        token = vocabulary.tokens.index(bytes([byte]))
        assert np.unpackbits(row.view(np.uint8), bitorder="little")[token]
        matcher.advance(token)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("schemas", [PLAIN, DEEP], ids=["automaton", "llguidance"])
def test_tool_calls_are_valid_within_any_token_limit(
    compiler: Compiler, form: str, schemas: dict[str, Any]
) -> None:
    text = wanted(form, schemas)
    assert isinstance(compiler.compile(text), llguidance_backend.LlguidanceGrammar) == (
        schemas is DEEP
    )
    made = compile_grammar(compiler, text)
    rng = np.random.default_rng(1)
    names, several = set(), 0
    for _ in range(30):
        most = int(rng.integers(made.shortest, 120))
        found = called(drawn(compiler, made, most, rng), form, schemas)
        names.update(found)
        several += len(found) > 1
    assert names == set(schemas)
    assert several or form != "pythonic"


def test_single_call_grammar_gives_one_call(compiler: Compiler) -> None:
    made = compile_grammar(compiler, wanted("pythonic", DEEP, many=False))
    rng = np.random.default_rng(2)
    for _ in range(10):
        text = drawn(compiler, made, 90, rng)
        assert len(called(text, "pythonic", DEEP)) == 1


def test_tool_arguments_are_always_an_object(compiler: Compiler) -> None:
    rng = np.random.default_rng(3)
    for loose in ({}, {"properties": {"a": {"type": "integer"}}}, {"$ref": "#/$defs/a"}):
        schema = {**loose, "$defs": {"a": {"minProperties": 1}}}
        made = compile_grammar(compiler, wanted("llama", {"f": schema}))
        for _ in range(5):
            text = drawn(compiler, made, 60, rng)
            assert '"parameters": {' in text
            assert called(text, "llama", {"f": schema})


def test_unsupported_tool_schema_error_names_the_tool(compiler: Compiler) -> None:
    pairs = {"type": "array", "uniqueItems": True, "minItems": 2}
    bad = {"type": "object", "properties": {"a": pairs}}
    with pytest.raises(GrammarRejected, match=r"`odd`.*`uniqueItems`.*#/properties/a"):
        compiler.compile(wanted("hermes", {**PLAIN, "odd": bad}))


def test_pattern_refusal_names_the_unsupported_construct(compiler: Compiler) -> None:
    behind = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=x)y"}}}
    text = wanted("hermes", {**PLAIN, "f": {**behind, "minProperties": 1}})
    with pytest.raises(GrammarRejected, match="uses look-around"):
        compile_grammar(compiler, text)


def test_many_tools_do_not_shorten_string_arguments(compiler: Compiler) -> None:
    """A call does not end inside a string because tokens for another tool are missing."""
    schemas = {**{f"tool_{index}": CITY for index in range(11)}, "grow": DEEP["grow"]}
    text = wanted("hermes", schemas)
    assert isinstance(compiler.compile(text), llguidance_backend.LlguidanceGrammar)
    made = compile_grammar(compiler, text)
    begun = b'<tool_call>\n{"name": "tool_3", "arguments": {"city": "'
    row = np.zeros(words(VOCAB), np.int32)
    for left, free in ((60, True), (20, False)):
        matcher = made.start(EndConditions((EOS[0], EOS[1]), left), begun)
        matcher.fill(row)
        able = np.unpackbits(row.view(np.uint8), bitorder="little").sum()
        assert (able > 1000) == free
    rng = np.random.default_rng(11)
    for _ in range(12):
        most = int(rng.integers(made.shortest, 120))
        assert called(drawn(compiler, made, most, rng), "hermes", schemas)

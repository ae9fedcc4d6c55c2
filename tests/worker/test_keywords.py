"""Every keyword of JSON Schema: what it forbids is not possible, and what it allows mostly is."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from keywords import CASES
from penstock.grammar import automaton, llguidance_backend
from penstock.grammar.automaton import Automaton
from penstock.grammar.compile import Compiler
from penstock.grammar.json_schema.emit import normalize
from penstock.grammar.json_schema.scalars import others
from penstock.grammar.protocol import (
    CompiledGrammar,
    EndConditions,
    GrammarKind,
    GrammarRejected,
    GrammarSpec,
)
from test_grammars import EOS
from test_tool_call_grammars import VOCAB, compiler
from test_walks import words

__all__ = ["compiler"]
CHECKER = Draft202012Validator.FORMAT_CHECKER


def compile_schema(compiler: Compiler, schema: Any) -> CompiledGrammar:
    made = compiler.compile(GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema), True))
    if isinstance(made, Automaton):
        return automaton.native_grammar(made, compiler.vocabulary, True)
    return llguidance_backend.native_grammar(made, compiler.vocabulary)


def document(
    made: CompiledGrammar, compiler: Compiler, most: int, draw: np.random.Generator
) -> bytes:
    """Drawn from the masks, those that end or open something more often."""
    matcher, out = made.start(EndConditions((EOS[0], EOS[1]), most)), b""
    texts = compiler.vocabulary.tokens
    for _ in range(most):
        row = np.zeros(words(VOCAB), np.int32)
        matcher.fill(row)
        able = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        marks = [token for token in able if set(texts[token]) & set(b'"{}[],:')]
        token = int(draw.choice(marks if marks and draw.random() < 0.3 else able))
        if token in EOS:
            break
        matcher.advance(token)
        out += texts[token]
    assert matcher.is_accepting, out
    return out


@pytest.mark.parametrize("name", CASES)
def test_keywords_are_enforced(compiler: Compiler, name: str) -> None:
    schema, possible, impossible = CASES[name]
    made = compile_schema(compiler, schema)
    validator = validator_for(schema, Draft202012Validator)(schema, format_checker=CHECKER)
    for wanted, values in ((True, possible), (False, impossible)):
        for value in values:
            assert validator.is_valid(value) == wanted or "draft 3" in name, value
            text = json.dumps(value, separators=(",", ":")).encode()
            assert (
                made.start(EndConditions((EOS[0], EOS[1]), 10_000), text).is_accepting == wanted
            ), value
    draw = np.random.default_rng(5)
    for more in (0, 1, 4, 12, 40, 120) * 3:
        text = document(made, compiler, made.shortest + more, draw)
        if "draft 3" not in name:
            validator.validate(json.loads(text))


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"$ref": "#"}, "#"),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"anyOf": [{"$ref": "#"}]}}}, "#"),
    ],
)
def test_self_referential_schema_is_refused(schema: Any, place: str) -> None:
    with pytest.raises(GrammarRejected, match=re.escape(f"at `{place}")):
        normalize(schema)


def test_multiplying_alternatives_stay_bounded() -> None:
    """Neither time nor size grows with the product."""
    tags = [f"t{index}" for index in range(24)]
    choice = [{"anyOf": [{"required": [tag]}, {"required": [f"{tag}b"]}]} for tag in tags]
    try:
        made = normalize({"type": "object", "allOf": choice})
    except GrammarRejected as error:
        assert "multiply" in str(error)
    else:
        assert len(made["anyOf"]) < 100


def test_many_conditions_on_one_member_do_not_multiply() -> None:
    kinds = [f"kind{index}" for index in range(30)]
    rules = [
        {
            "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
            "then": {"required": [f"of_{kind}"]},
        }
        for kind in kinds
    ]
    made = normalize({"type": "object", "properties": {"kind": {"enum": kinds}}, "allOf": rules})
    required = {tuple(each["required"]) for each in made["anyOf"] if "required" in each}
    assert required >= {("kind", f"of_{kind}") for kind in kinds}


def test_negated_pattern_matches_all_other_texts() -> None:
    pattern = re.compile(others(["a", "ab", "b-]", 'q"'], ["xy", "^"]))
    for text in ("", "aa", "abc", "b", "b-", "q", "x", "yx", "\n", "xx", "abab"):
        assert pattern.search(text), text
    for text in ("a", "ab", "b-]", 'q"', "xy", "xyz", "^", "^a"):
        assert not pattern.search(text), text

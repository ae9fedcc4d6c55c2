"""Documents use their tokens to the last, and are whole then: what is counted for a token that
begins something is enough, and not much more."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from jsonschema import validate
from penstock.grammar import growth
from penstock.grammar import schema as schemas
from penstock.grammar.compile import Compiler
from penstock.grammar.llguidance_backend import LlguidanceGrammar
from penstock.grammar.native import NativeMatcher
from penstock.grammar.protocol import EndConditions, GrammarKind, GrammarSpec, words
from penstock.grammar.schema import MOST_SIZE
from schemas import EXPRESSIBLE, OTHERS, WORD, composed, listing, record
from test_grammars import EOS
from test_tool_call_grammars import VOCAB, compile_grammar, compiler
from trees import PERSON, TREE

__all__ = ["compiler"]
TEXT = record(text={"type": "string"})
# Each can go on for ever, by one or a few tokens more.
ENDLESS = {
    "outlines": {
        "string": EXPRESSIBLE["string"],
        "items": EXPRESSIBLE["items"],
        "lists": listing(listing({"type": "integer"})),
        "text": TEXT,
        "records": listing(record(a={"type": "integer"}, b={"type": "string"})),
    },
    "llguidance": {
        "any object": OTHERS["any object"],
        "any list": OTHERS["any list"],
        "members": OTHERS["additionalProperties"],
        "patterns": OTHERS["patternProperties"],
        "text": TEXT,
        "tree": TREE,
        "beside a large one": record(
            few=listing({"type": "integer", "minimum": 0}),
            many=listing(record(**{f"name_{index}": WORD for index in range(12)})),
        ),
    },
}


class Scan:
    """Characters of JSON that begin or end something."""

    def __init__(self) -> None:
        self.open: list[str] = []  # what is open, a string as its kind: `name` or `text`
        self.named = False  # whether the next string is a member's name

    def take(self, text: bytes) -> int:
        """Of `text`; and one for a token that goes on with a name."""
        count = int(self.open[-1:] == ["name"])
        for byte in text.decode("latin-1"):
            inside = self.open[-1:]
            if inside == ["escape"]:
                self.open.pop()
            elif inside in (["name"], ["text"]):
                count += byte == '"'
                if byte == '"':
                    self.open.pop()
                elif byte == "\\":
                    self.open.append("escape")
            elif byte in '{}[]",:':
                count += 1
                self._structure(byte)
        return count

    def _structure(self, byte: str) -> None:
        if byte == '"':
            self.open.append("name" if self.named else "text")
        elif byte in "{[":
            self.open.append(byte)
        elif byte in "}]":
            self.open.pop()
        self.named = byte == "{" or (byte == "," and self.open[-1:] == ["{"])


def able(matcher: NativeMatcher) -> Any:
    """The tokens that may follow, end tokens apart."""
    row = np.zeros(words(VOCAB), np.int32)
    matcher.fill(row)
    found = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
    return found[~np.isin(found, EOS)]


def of_schema(schema: Any) -> GrammarSpec:
    return GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema), complete=True)


@pytest.mark.parametrize("backend", ENDLESS)
def test_documents_use_nearly_all_of_their_tokens(
    compiler: Compiler, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of tokens that end nothing where there are such: over many budgets, hardly any is left."""
    if backend == "llguidance":
        monkeypatch.setattr(schemas, "expression", lambda _: None)
    texts = compiler.vocabulary.tokens
    for name, schema in ENDLESS[backend].items():
        # What the draw prefers; a text goes on where it is not quoted, a list behind a comma.
        ends = [text.isspace() or set(text) & set(b"]}") or text.count(b'"') > 1 for text in texts]
        open = ~np.array(ends, np.bool_)
        quiet = np.array([b'"' not in text for text in texts]) & open
        tiers = [quiet, open] if name in ("string", "text") else [open]
        made = compile_grammar(compiler, of_schema(schema))
        assert isinstance(compiler.compile(of_schema(schema)), LlguidanceGrammar) == (
            backend != "outlines"
        )
        rng, unused = np.random.default_rng(7), []
        for most in range(made.shortest + 8, made.shortest + 128, 6):
            matcher, out = made.start(EndConditions((EOS[0], EOS[1]), most)), b""
            for left in range(most, -1, -1):
                tokens = able(matcher) if left else []
                if not len(tokens):
                    break
                preferred = (tokens[tier[tokens]] for tier in tiers)
                tokens = next((found for found in preferred if len(found)), tokens)
                token = int(rng.choice(tokens))
                out += texts[token]
                matcher.advance(token)
            validate(json.loads(out.decode("utf-8", "replace")), schema)
            unused.append(left)
        most = made.shortest if name == "tree" else 3  # a node of it has at least this many
        assert np.mean(unused) < most / 2, (name, unused)
        assert max(unused) <= most, (name, unused)


def test_growth_bound_per_token_is_sufficient(compiler: Compiler) -> None:
    """No token, whatever it begins, lengthens what a document needs by more."""
    texts = compiler.vocabulary.tokens
    schemas = {**OTHERS, "person": PERSON, "tree": TREE}
    schemas |= {f"composed {number}": composed(number) for number in range(16)}
    rng, seen = np.random.default_rng(8), 0
    for name, schema in schemas.items():
        made, compiled = (
            compile_grammar(compiler, of_schema(schema)),
            compiler.compile(of_schema(schema)),
        )
        if not isinstance(compiled, LlguidanceGrammar):
            continue
        grows = compiled.growth
        assert grows is not None
        matcher, out, scan, needed = made.start(EndConditions((), 5000)), b"", Scan(), made.shortest
        for _ in range(30):
            tokens = able(matcher)
            if not len(tokens):
                break
            token = int(rng.choice(tokens))
            out += texts[token]
            matcher.advance(token)
            after = made.needed(out)
            assert after is not None, (name, out)
            bound = needed + scan.take(texts[token]) * grows.each + grows.once
            assert after <= bound, (name, out, needed)
            needed, seen = after, seen + 1
    assert seen > 600


def test_optional_recursion_has_a_small_growth_bound(compiler: Compiler) -> None:
    opened, _ = growth.schema_growth(TREE, compiler.vocabulary)
    assert opened < 40
    endless = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    assert growth.schema_growth(endless, compiler.vocabulary)[0] >= MOST_SIZE


def tagged() -> Any:
    """Objects whose `type` says what else they hold: of many short ones, of a long one."""
    short = {"type": {"enum": [letter + "-scalar" for letter in "abcdefghijklmnopqrstuvwxyz"]}}
    long = {"type": {"const": "enumeration"}, "name": WORD, "symbols": {"type": "array"}}
    kinds = {"short": record(**short), "long": record(**long)}
    references = [{"$ref": f"#/$defs/{name}"} for name in kinds]
    return {"$defs": kinds, "oneOf": references}


def test_alternative_is_allowed_only_if_its_completion_fits(compiler: Compiler) -> None:
    schema, texts = tagged(), compiler.vocabulary.tokens
    made = compile_grammar(compiler, of_schema(schema))
    begun, long = b'{"type":"', 0
    spelt = compiler.vocabulary.shortest_tokenization(begun)
    assert spelt
    for most in range(made.shortest, made.shortest + 60):
        tokens = able(placed(made, spelt, most))
        for token in tokens[[b"enumeration".startswith(texts[token]) for token in tokens]]:
            needed, long = made.needed(begun + texts[token]), long + 1
            assert needed is not None and needed <= most - len(spelt) - 1, (most, texts[token])
            able(placed(made, [*spelt, token], most))  # it can go on
    assert long


def placed(made: Any, tokens: list[int], most: int) -> NativeMatcher:
    """A matcher behind some tokens of `most`."""
    matcher: NativeMatcher = made.start(EndConditions((EOS[0], EOS[1]), most))
    for token in tokens:
        matcher.advance(token)
    return matcher

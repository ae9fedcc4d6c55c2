"""Guides that are made of others: behind thoughts, behind a special token, and one of two."""

from __future__ import annotations

import json
from copy import copy
from typing import Any

import numpy as np
import pytest
from jsonschema import validate
from penstock.guidance.compile import Compiler
from penstock.guidance.either import EitherGuide, MarkedGuide
from penstock.guidance.protocol import Compiled, Cursor, Ends, Kind, Thoughts, Wanted, words
from penstock.guidance.thoughts import ThoughtfulGuide
from test_calls import DEEP, PLAIN, VOCAB, called, compiler, guide, wanted
from test_guides import EOS, PERSON
from test_lazy_calls import lazy
from trees import TREE

__all__ = ["compiler"]
OPEN, CLOSE = b"<think>", b"</think>"
MARKS = {OPEN: 6, CLOSE: 7}  # special tokens of brook's


def document(compiler: Compiler, schema: Any) -> Compiled:
    return guide(compiler, Wanted(Kind.JSON_SCHEMA, json.dumps(schema), True))


def thoughtful(
    compiler: Compiler, inner: Compiled, begun: bool, special: bool = False
) -> ThoughtfulGuide:
    vocabulary = compiler.vocabulary
    if special:
        vocabulary = copy(vocabulary)
        vocabulary.marks = MARKS
    return ThoughtfulGuide(inner, Thoughts(OPEN, CLOSE, begun), vocabulary, True)


def allowed(cursor: Cursor) -> list[int]:
    row = np.zeros(words(VOCAB), np.int32)
    cursor.fill(row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")[:VOCAB]
    assert not cursor.idle or bits.all()
    found: list[int] = np.flatnonzero(bits).tolist()
    return found


def drawn(made: ThoughtfulGuide, most: int, rng: np.random.Generator, hurry: float) -> bytes:
    """An answer of tokens that the masks allow; it spells a mark, by bytes or as a token, at
    any step with the chance `hurry`."""
    cursor, out, goal = made.start(Ends((EOS[0], EOS[1]), most)), b"", b""
    tokens = list[int]()
    for step in range(most):
        able = allowed(cursor)
        if step % 7 == 0:
            again = made.start(Ends((EOS[0], EOS[1]), most))
            for token in tokens:
                again.advance(token)
            assert allowed(again) == able == allowed(cursor.copy())
        if not goal and rng.random() < hurry:
            goal = CLOSE if cursor.state is not None else OPEN if cursor.seen == b"" else b""
        wishes = [made._id(goal), made._id(goal[:1])] if goal else []
        token = next((t for t in wishes if t in able), None)
        if token is None:
            goal, token = b"", int(rng.choice(able))
        if token in EOS:
            break
        goal = goal[len(made.text(token)) :]
        out += made.text(token)
        tokens.append(token)
        cursor.advance(token)
    return out


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("begun", [False, True], ids=["may", "begun"])
@pytest.mark.parametrize("what", ["automaton", "llguidance", "calls"])
def test_a_document_comes_whole_behind_thoughts(
    compiler: Compiler, what: str, begun: bool, special: bool
) -> None:
    inner = {
        "automaton": lambda: document(compiler, PERSON),
        "llguidance": lambda: document(compiler, TREE),
        "calls": lambda: guide(compiler, wanted("hermes", PLAIN)),
    }[what]()
    made = thoughtful(compiler, inner, begun, special)
    rng = np.random.default_rng(8)
    thought = 0
    for _ in range(12):
        most = int(rng.integers(made.shortest, made.shortest + 60))
        text = drawn(made, most, rng, 0.2).decode("utf-8", "replace")
        thinks = begun or text.lstrip().startswith("<think>")
        thought += thinks
        answer = text.partition("</think>")[2] if thinks else text
        if what == "calls":
            assert called(answer.lstrip(), "hermes", PLAIN)
        else:
            validate(json.loads(answer), PERSON if what == "automaton" else TREE)
    assert thought


def test_calls_that_open_in_thoughts_are_thoughts(compiler: Compiler) -> None:
    made = thoughtful(compiler, lazy(compiler, "hermes", PLAIN), begun=True)
    texts = compiler.vocabulary.tokens
    cursor = made.start(Ends((EOS[0], EOS[1]), 200))
    for part in (b"<", b"tool", b"_", b"call", b'>{"', b"name"):
        assert cursor.idle
        cursor.advance(texts.index(part))
    for part in (b"</", b"th", b"in", b"k"):
        cursor.advance(texts.index(part))
    assert texts.index(b">") in allowed(cursor)
    cursor.advance(texts.index(b">"))
    assert cursor.idle
    for part in (b"<", b"tool", b"_", b"call", b">"):
        cursor.advance(texts.index(part))
    assert not cursor.idle
    assert {texts[token][:1] for token in allowed(cursor)} == {b"\n"}


def test_an_answer_is_the_one_or_the_other(compiler: Compiler) -> None:
    calls = guide(compiler, wanted("hermes", DEEP))
    made = EitherGuide([document(compiler, PERSON), calls])
    assert made.shortest < calls.shortest
    rng, kinds = np.random.default_rng(9), set()
    for most in [made.shortest] * 3 + [60] * 20:
        cursor, out = made.start(Ends((EOS[0], EOS[1]), most)), b""
        first = allowed(cursor)
        token = int(rng.choice([t for t in first if made_text(compiler, t)[:1] == b"<"] or first))
        if rng.random() < 0.5:
            token = int(rng.choice(first))
        for _ in range(most):
            if token in EOS:
                break
            out += made_text(compiler, token)
            cursor.advance(token)
            token = int(rng.choice(allowed(cursor)))
        text = out.decode("utf-8", "replace")
        if text.startswith("<"):
            assert most > made.shortest
            assert called(text, "hermes", DEEP)
        else:
            validate(json.loads(text), PERSON)
        kinds.add(text[:1])
    assert kinds == {"<", "{"}


def made_text(compiler: Compiler, token: int) -> bytes:
    return compiler.vocabulary.tokens[token]


def test_a_special_token_comes_first(compiler: Compiler) -> None:
    inner = document(compiler, PERSON)
    made = MarkedGuide(inner, 7)
    cursor = made.start(Ends((EOS[0], EOS[1]), made.shortest))
    assert allowed(cursor) == [7]
    assert not cursor.whole
    cursor.advance(7)
    expected = inner.start(Ends((EOS[0], EOS[1]), made.shortest - 1))
    assert allowed(cursor) == allowed(expected) == allowed(cursor.copy())
    lost = made.start(Ends((EOS[0], EOS[1]), made.shortest))
    lost.advance(100)
    assert lost.ended
    assert allowed(lost) == EOS

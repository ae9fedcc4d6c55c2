"""Grammars that are made of others: behind thoughts, behind a special token, and one of two."""

from __future__ import annotations

import json
from copy import copy
from typing import Any

import numpy as np
import pytest
from jsonschema import validate
from penstock.grammar.compile import Compiler
from penstock.grammar.composite import ForcedPrefixGrammar, UnionGrammar
from penstock.grammar.protocol import (
    CompiledGrammar,
    EndConditions,
    GrammarKind,
    GrammarRejected,
    GrammarSpec,
    Matcher,
    Reasoning,
    words,
)
from penstock.grammar.reasoning import FreeTextGrammar, ReasoningGrammar
from test_grammars import EOS, PERSON
from test_optional_tool_calls import lazy
from test_tool_call_grammars import DEEP, PLAIN, VOCAB, called, compile_grammar, compiler, wanted
from trees import TREE

__all__ = ["compiler"]
OPEN, CLOSE = b"<think>", b"</think>"
MARKS = {OPEN: 6, CLOSE: 7}  # special tokens of brook's


def document(compiler: Compiler, schema: Any) -> CompiledGrammar:
    return compile_grammar(compiler, GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(schema), True))


def reasoning_grammar(
    compiler: Compiler, inner: CompiledGrammar, begun: bool, special: bool = False
) -> ReasoningGrammar:
    vocabulary = compiler.vocabulary
    if special:
        vocabulary = copy(vocabulary)
        vocabulary.special_tokens = MARKS
    return ReasoningGrammar(inner, Reasoning(OPEN, CLOSE, begun), vocabulary, True)


def allowed(matcher: Matcher) -> list[int]:
    row = np.zeros(words(VOCAB), np.int32)
    matcher.fill(row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")[:VOCAB]
    assert not matcher.unconstrained or bits.all()
    found: list[int] = np.flatnonzero(bits).tolist()
    return found


def drawn(made: ReasoningGrammar, most: int, rng: np.random.Generator, hurry: float) -> bytes:
    """An answer of tokens that the masks allow; it spells a mark, by bytes or as a token, at
    any step with the chance `hurry`."""
    matcher, out, goal = made.start(EndConditions((EOS[0], EOS[1]), most)), b"", b""
    tokens = list[int]()
    for step in range(most):
        able = allowed(matcher)
        if step % 7 == 0:
            again = made.start(EndConditions((EOS[0], EOS[1]), most))
            for token in tokens:
                again.advance(token)
            assert allowed(again) == able == allowed(matcher.copy())
        if not goal and rng.random() < hurry:
            goal = CLOSE if matcher.state is not None else OPEN if matcher.seen == b"" else b""
        wishes = [made._id(goal), made._id(goal[:1])] if goal else []
        token = next((t for t in wishes if t in able), None)
        if token is None:
            goal, token = b"", int(rng.choice(able))
        if token in EOS:
            break
        goal = goal[len(made.text(token)) :]
        out += made.text(token)
        tokens.append(token)
        matcher.advance(token)
    return out


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("begun", [False, True], ids=["may", "begun"])
@pytest.mark.parametrize("what", ["automaton", "llguidance", "calls"])
def test_document_is_complete_after_reasoning(
    compiler: Compiler, what: str, begun: bool, special: bool
) -> None:
    inner = {
        "automaton": lambda: document(compiler, PERSON),
        "llguidance": lambda: document(compiler, TREE),
        "calls": lambda: compile_grammar(compiler, wanted("hermes", PLAIN)),
    }[what]()
    made = reasoning_grammar(compiler, inner, begun, special)
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


def test_a_header_follows_reasoning(compiler: Compiler) -> None:
    vocabulary = copy(compiler.vocabulary)
    vocabulary.special_tokens = {b"<|start|>": 5, b"<|end|>": 6, b"<|message|>": 7}
    header = b"<|start|>assistant<|message|>"
    marks = Reasoning(b"<|message|>", b"<|end|>", True, header)
    made = ReasoningGrammar(document(compiler, PERSON), marks, vocabulary, True)
    assert isinstance(made.answer, ForcedPrefixGrammar)
    forced = made.answer.tokens
    assert made.shortest == 1 + len(forced) + made.inner.shortest
    assert (forced[0], forced[-1]) == (5, 7)
    assert vocabulary.decode(forced[1:-1]) == b"assistant"
    rng = np.random.default_rng(10)
    for most in [made.shortest] * 2 + [made.shortest + 9] * 6:
        matcher, tokens = made.start(EndConditions((EOS[0], EOS[1]), most)), list[int]()
        while len(tokens) < most:
            able = allowed(matcher)
            assert able == allowed(matcher.copy())
            if matcher.state is not None:
                # Neither an end nor another message is allowed within the reasoning.
                assert not {EOS[0], EOS[1], 5, 7} & set(able)
            tokens.append(int(rng.choice(able)))
            if tokens[-1] in EOS:
                break
            matcher.advance(tokens[-1])
        end = tokens.index(6)
        after = tokens[end + 1 :]
        assert tuple(after[: len(forced)]) == forced
        text = [token for token in after[len(forced) :] if token not in EOS]
        validate(json.loads(vocabulary.decode(text)), PERSON)


def test_a_header_that_no_tokens_spell_is_refused(compiler: Compiler) -> None:
    marks = Reasoning(OPEN, CLOSE, True, b"\xff\xfe")
    with pytest.raises(GrammarRejected, match="header of the answer"):
        ReasoningGrammar(FreeTextGrammar(), marks, compiler.vocabulary, True)


def test_tool_calls_within_reasoning_are_not_calls(compiler: Compiler) -> None:
    made = reasoning_grammar(compiler, lazy(compiler, "hermes", PLAIN), begun=True)
    texts = compiler.vocabulary.tokens
    matcher = made.start(EndConditions((EOS[0], EOS[1]), 200))
    for part in (b"<", b"tool", b"_", b"call", b'>{"', b"name"):
        assert matcher.unconstrained
        matcher.advance(texts.index(part))
    for part in (b"</", b"th", b"in", b"k"):
        matcher.advance(texts.index(part))
    assert texts.index(b">") in allowed(matcher)
    matcher.advance(texts.index(b">"))
    assert matcher.unconstrained
    for part in (b"<", b"tool", b"_", b"call", b">"):
        matcher.advance(texts.index(part))
    assert not matcher.unconstrained
    assert {texts[token][:1] for token in allowed(matcher)} == {b"\n"}


def test_answer_follows_one_of_two_grammars(compiler: Compiler) -> None:
    calls = compile_grammar(compiler, wanted("hermes", DEEP))
    made = UnionGrammar([document(compiler, PERSON), calls])
    assert made.shortest < calls.shortest
    rng, kinds = np.random.default_rng(9), set()
    for most in [made.shortest] * 3 + [60] * 20:
        matcher, out = made.start(EndConditions((EOS[0], EOS[1]), most)), b""
        first = allowed(matcher)
        token = int(rng.choice([t for t in first if made_text(compiler, t)[:1] == b"<"] or first))
        if rng.random() < 0.5:
            token = int(rng.choice(first))
        for _ in range(most):
            if token in EOS:
                break
            out += made_text(compiler, token)
            matcher.advance(token)
            token = int(rng.choice(allowed(matcher)))
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


@pytest.mark.parametrize("tokens", [(7,), (5, 100, 7)], ids=["one", "three"])
def test_forced_tokens_precede_the_document(compiler: Compiler, tokens: tuple[int, ...]) -> None:
    inner = document(compiler, PERSON)
    made = ForcedPrefixGrammar(inner, tokens)
    ends = EndConditions((EOS[0], EOS[1]), made.shortest)
    matcher = made.start(ends)
    for token in tokens:
        assert allowed(matcher) == allowed(matcher.copy()) == [token]
        assert not matcher.is_accepting
        matcher.advance(token)
    expected = inner.start(EndConditions((EOS[0], EOS[1]), inner.shortest))
    assert allowed(matcher) == allowed(expected) == allowed(matcher.copy())
    for place in range(len(tokens)):
        lost = made.start(ends)
        for token in (*tokens[:place], 101):
            lost.advance(token)
        assert lost.ended
        assert allowed(lost) == EOS
    behind_text = made.start(ends, b"text")
    assert made.needed(b"text") is None
    assert behind_text.ended


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("most", [0, 1, 5])
@pytest.mark.parametrize("begun", [True, False], ids=["begun", "opened"])
def test_reasoning_is_closed_after_its_tokens(
    compiler: Compiler, begun: bool, most: int, special: bool
) -> None:
    made = reasoning_grammar(compiler, FreeTextGrammar(), begun, special)
    matcher = made.start(EndConditions((EOS[0],), 100, most))
    for token in () if begun else made._spelt(OPEN):
        assert matcher.unconstrained
        matcher.advance(token)
    word = compiler.vocabulary.tokens.index(b"th")
    for _ in range(most):
        assert matcher.unconstrained
        matcher.advance(word)
    for token in made._spelt(CLOSE):
        assert allowed(matcher) == allowed(matcher.copy()) == [token]
        matcher.advance(token)
    for token in (word, EOS[0]):
        assert matcher.unconstrained and matcher.is_accepting
        matcher.advance(token)


def test_reasoning_that_closes_itself_is_free_text_after_it(compiler: Compiler) -> None:
    made = reasoning_grammar(compiler, FreeTextGrammar(), begun=True)
    matcher = made.start(EndConditions((EOS[0],), 100, 20))
    for token in (*made._spelt(CLOSE), *[compiler.vocabulary.tokens.index(b"th")] * 30):
        assert matcher.unconstrained
        matcher.advance(token)


def test_document_is_complete_after_reasoning_with_a_budget(compiler: Compiler) -> None:
    made = reasoning_grammar(compiler, document(compiler, PERSON), begun=True)
    rng = np.random.default_rng(3)
    for budget in (0, 3, 12):
        matcher, out = made.start(EndConditions(tuple(EOS[:2]), made.shortest + 30, budget)), b""
        while not matcher.ended:
            token = int(rng.choice(allowed(matcher)))
            out += b"" if token in EOS else made.text(token)
            matcher.advance(token)
        reasoning, _, answer = out.partition(CLOSE)
        assert len(compiler.vocabulary.shortest_tokenization(reasoning) or ()) <= budget
        validate(json.loads(answer), PERSON)

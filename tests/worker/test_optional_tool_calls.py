"""Calls that a model makes by itself: text is free until one opens, and constrained then."""

from __future__ import annotations

import json
import re
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from penstock.grammar import llguidance_backend
from penstock.grammar.compile import Compiler
from penstock.grammar.lazy import LazyGrammar, LazyMatcher
from penstock.grammar.opening import Opening, OpeningDetector, OpeningHead
from penstock.grammar.protocol import EndConditions, GrammarSpec, words
from penstock.grammar.tool_calls import opening
from test_grammars import EOS
from test_tool_call_grammars import (
    DEEP,
    FORMATS,
    PLAIN,
    VOCAB,
    called,
    compile_grammar,
    compiler,
    wanted,
)

__all__ = ["compiler"]
# What the router sends for each format, without its heads.
OPENINGS: dict[str, dict[str, Any]] = {
    "hermes": {"mark": "<tool_call>", "spelt": "<tool_call>"},
    "llama": {"mark": "<|python_tag|>", "at_start": True, "again": ";"},
    "mistral": {"mark": "[TOOL_CALLS]"},
    "pythonic": {"mark": "<|python_start|>", "at_start": True},
}
MARK = 7  # a special token of brook's


def heads_of(form: str, name: str) -> list[dict[str, Any]]:
    """As the router has them."""
    if form == "pythonic":
        return [{"parts": ["[", f"{name}("], "spelt": f"[{name}("}]
    if form == "llama":
        spelt, key = f'{{"name": "{name}"', ['"name"', ":", f'"{name}"']
        typed = ["{", '"type"', ":", '"function"', ",", *key]
        return [{"parts": parts, "spelt": spelt} for parts in (["{", *key], typed)]
    return []


def lazily(form: str, schemas: dict[str, Any]) -> GrammarSpec:
    """What the router asks for: in lists several calls may follow each other."""
    asked = wanted(form, schemas, many=form in ("mistral", "pythonic"))
    heads = [head for name in schemas for head in heads_of(form, name)]
    opened = OPENINGS[form] | ({"heads": heads} if heads else {})
    frame = {**json.loads(asked.text), "opening": opened}
    return replace(asked, text=json.dumps(frame))


def lazy(
    compiler: Compiler, form: str, schemas: dict[str, Any], marked: bool = False
) -> LazyGrammar:
    """With `marked`, what opens a call is a special token."""
    asked = lazily(form, schemas)
    opened = opening(json.loads(asked.text))
    assert opened is not None
    vocabulary = compiler.vocabulary
    if marked:
        vocabulary = copy(vocabulary)
        vocabulary.special_tokens = {opened.mark: MARK}
    return LazyGrammar(compile_grammar(compiler, asked), opened, vocabulary)


def allowed(matcher: LazyMatcher) -> Any:
    row = np.zeros(words(VOCAB), np.int32)
    matcher.fill(row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")[:VOCAB]
    assert matcher.unconstrained == (matcher.inner is None and bool(bits.all()))
    return np.flatnonzero(bits)


def farther(made: LazyGrammar, state: int) -> list[int]:
    """The tokens that go on with a mark or a head, or begin one."""
    detector = made.detector

    def rank(state: int) -> int:
        return detector.marked if state in (detector.first, detector.next) and state else state

    wanted = [each for each in range(detector.states) if rank(each) > rank(state)]
    return [
        token for token, _ in made.vocabulary.own.tokens_leading_to(detector.table, state, wanted)
    ]


def answer(made: LazyGrammar, most: int, rng: np.random.Generator) -> tuple[list[str], list[int]]:
    """The calls of an answer that wants to call as often as the masks let it, and its tokens."""
    matcher = made.start(EndConditions((EOS[0], EOS[1]), most))
    calls, tokens, call = list[bytes](), list[int](), b""
    for _ in range(most):
        able = allowed(matcher)
        inner = matcher.inner
        if inner is None:
            near = made.detector.followers(matcher.state, made.vocabulary)
            near = [each for each in near if each.token in able]
            opens = [each.token for each in near if each.rest is not None]
            begins = np.intersect1d(able, farther(made, matcher.state)).tolist()
            able = np.array(opens or begins or able[able > len(EOS) + 1])
        token = int(rng.choice(able))
        assert token not in EOS
        if inner is not None:
            call += made.text(token)
        else:
            state, rest = made.detector.run(matcher.state, made.text(token))
            call = made.detector.spelt.get(state, b"") + (rest or b"")
        tokens.append(token)
        matcher.advance(token)
        if inner is not None and matcher.inner is None:
            calls.append(call)
    assert matcher.inner is None, "a call was cut off"
    assert not 0 < matcher.state <= made.detector.marked, "the answer ends in a mark"
    return [call.decode("utf-8", "replace") for call in calls], tokens


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("schemas", [PLAIN, DEEP], ids=["automaton", "llguidance"])
def test_tool_calls_in_free_text_are_valid_within_any_token_limit(
    compiler: Compiler, form: str, schemas: dict[str, Any]
) -> None:
    made = lazy(compiler, form, schemas, marked=form == "mistral")
    followed = compiler.compile(lazily(form, schemas))
    assert isinstance(followed, llguidance_backend.LlguidanceGrammar) == (schemas is DEEP)
    rng = np.random.default_rng(4)
    names, most_calls = set(), 0
    for _ in range(12):
        found, _ = answer(made, int(rng.integers(20, 120)), rng)
        for text in found:
            names.update(called(text, form, schemas))
        most_calls = max(most_calls, len(found))
    assert names == set(schemas)
    assert most_calls > 1


@pytest.mark.parametrize("form", FORMATS)
def test_call_opens_only_if_it_can_complete(compiler: Compiler, form: str) -> None:
    """Whatever the tokens of an answer that would call at once: a call that is whole, or text."""
    made = lazy(compiler, form, PLAIN, marked=form == "mistral")
    rng = np.random.default_rng(8)
    called_with = {most: len(answer(made, most, rng)[0]) for most in range(1, 40)}
    assert not called_with[1]
    assert not called_with[made.inner.shortest - 2]
    assert all(called_with[most] for most in range(30, 40))


WEATHER, NOW = '{"name": "weather"', '{"name": "now"'


@pytest.mark.parametrize(
    ("form", "text", "opened"),
    [
        ("llama", '{"name": "weather"', WEATHER),
        ("llama", ' { "name":"now"', NOW),
        ("llama", '<|python_tag|>{"name" : "now"', NOW),
        ("llama", 'So: <|python_tag|>\n{"type": "function", "name": "now"', NOW),
        ("llama", '{"name": "Ann", "age": 7}', None),
        ("llama", '{"age": 7, "name": "now"}', None),
        ("llama", '{"type": "object", "name": "now"', None),
        ("llama", '{"name": "nowhere"', None),
        ("llama", 'So: {"name": "now"', None),
        ("pythonic", "[now(", "[now("),
        ("pythonic", " [ weather(", "[weather("),
        ("pythonic", "So: <|python_start|>[now(", "[now("),
        ("pythonic", "[1, 2]", None),
        ("pythonic", "[now](http://a)", None),
        ("pythonic", "[now (", None),
        ("pythonic", "So: [now(", None),
    ],
)
def test_only_unambiguous_text_opens_a_call(
    compiler: Compiler, form: str, text: str, opened: str | None
) -> None:
    """Answers may begin like a call, whole documents among them."""
    made = lazy(compiler, form, PLAIN)
    texts = compiler.vocabulary.tokens
    rng = np.random.default_rng(9)
    fewest = compiler.vocabulary.shortest_tokenization(text.encode())
    for tokens in (fewest, [texts.index(bytes([byte])) for byte in text.encode()]):
        assert tokens is not None
        matcher = made.start(EndConditions((EOS[0], EOS[1]), 200))
        for token in tokens:
            assert token in allowed(matcher)
            matcher.advance(token)
        assert (matcher.inner is not None) == (opened is not None)
        out = b""
        while matcher.inner is not None:
            token = int(rng.choice(allowed(matcher)))
            out += made.text(token)
            matcher.advance(token)
        if opened is not None:
            assert called(opened + out.decode("utf-8", "replace"), form, PLAIN)


def test_suppressed_call_mark_is_reported(compiler: Compiler) -> None:
    """The model meant to call: it has not ended of itself. A `<` alone may be anything."""
    made = lazy(compiler, "hermes", PLAIN)
    texts = compiler.vocabulary.tokens
    row = np.zeros(words(VOCAB), np.int32)
    for most, suppressed in ((60, False), (8, True)):
        matcher = made.start(EndConditions((EOS[0], EOS[1]), most))
        assert not matcher.fill(row)
        assert texts.index(b"<") in allowed(matcher)
        matcher.advance(texts.index(b"<"))
        assert matcher.fill(row) == suppressed
        assert (texts.index(b"tool") in allowed(matcher)) != suppressed
        assert texts.index(b"t") in allowed(matcher) or suppressed
    last = made.start(EndConditions((EOS[0], EOS[1]), 1))
    assert texts.index(b"<") not in allowed(last)


def test_matcher_restarts_from_emitted_tokens(compiler: Compiler) -> None:
    made = lazy(compiler, "hermes", DEEP)
    _, tokens = answer(made, 150, np.random.default_rng(5))
    live = made.start(EndConditions((EOS[0], EOS[1]), 150))
    for place, token in enumerate(tokens):
        if place % 10 == 0:
            again = made.start(EndConditions((EOS[0], EOS[1]), 150))
            for earlier in tokens[:place]:
                again.advance(earlier)
            twin = live.copy()
            assert np.array_equal(allowed(live), allowed(again))
            assert np.array_equal(allowed(live), allowed(twin))
        live.advance(token)


def test_free_text_is_unmasked_and_wrong_openings_are_masked(compiler: Compiler) -> None:
    made = lazy(compiler, "hermes", PLAIN)
    texts = compiler.vocabulary.tokens
    matcher = made.start(EndConditions((EOS[0], EOS[1]), 100))
    assert matcher.unconstrained
    assert matcher.is_accepting
    for part in (b"<", b"tool", b"_", b"call"):
        matcher.advance(texts.index(part))
    able = allowed(matcher)
    assert texts.index(b">") in able
    # Hermes has a line's end before the brace.
    assert texts.index(b'>{"') not in able
    assert texts.index(b">>") not in able
    assert EOS[0] in able
    short = made.start(EndConditions((EOS[0], EOS[1]), made.inner.shortest - 3))
    for part in (b"<", b"tool", b"_", b"call"):
        short.advance(texts.index(part))
    assert texts.index(b">") not in allowed(short)


def test_watch_finds_the_same_openings_as_a_regex(compiler: Compiler) -> None:
    rng = np.random.default_rng(6)
    heads = (OpeningHead((b"{",), b"{"),)
    for mark, then in ((b"aab", ()), (b"abab", heads), (b"a", heads)):
        detector = OpeningDetector(Opening(mark, b"", then, at_start=bool(then)))
        pattern = re.compile(b"(?:^|" + mark + rb")[ ]*\{" if then else mark)
        for _ in range(300):
            text = bytes(rng.choice(list(b"aab{ "), int(rng.integers(0, 12))).tolist())
            found = pattern.search(text)
            _, rest = detector.run(detector.first, text)
            assert rest == (text[found.end() :] if found else None), (mark, text)
        texts = compiler.vocabulary.tokens
        for state in {detector.first, *range(detector.marked)}:
            near = {
                (each.token, each.after, each.rest)
                for each in detector.followers(state, compiler.vocabulary)
            }
            run = ((token, *detector.run(state, text)) for token, text in enumerate(texts) if text)
            within = range(1, detector.marked + bool(then))
            assert near == {each for each in run if each[2] is not None or each[1] in within}

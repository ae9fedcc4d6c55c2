"""The extension's walks over tokens, against ones that take a token's bytes one after the other."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from penstock._core import CompiledGrammar
from penstock.grammar import automaton, llguidance_backend
from penstock.grammar.automaton import FAR, Automaton
from penstock.grammar.compile import Compiler
from penstock.grammar.llguidance_backend import Growth, schema_grammar
from penstock.grammar.protocol import EndConditions, GrammarKind, GrammarSpec, words
from penstock.grammar.vocabulary import Vocabulary
from test_grammars import EOS
from test_tool_call_grammars import VOCAB, compiler
from trees import PERSON

__all__ = ["compiler"]


def walked(table: Any, state: int, text: bytes) -> int:
    """The state after a text, or -1."""
    for byte in text:
        state = int(table[state, byte])
        if state < 0:
            return -1
    return state


def random_automaton(draw: np.random.Generator, vocabulary: Vocabulary) -> Automaton:
    """A few states over the bytes of a few tokens, with the exact tokens to a whole text."""
    states = int(draw.integers(2, 7))
    table = np.full((states, 256), -1, np.int16)
    letters = list({byte for text in draw.choice(vocabulary.tokens[300:], 6) for byte in text})
    for state in range(states):
        used = draw.choice(letters, int(draw.integers(1, len(letters) + 1)))
        table[state, used] = draw.integers(0, states, len(used))
    whole = draw.random(states) < 0.4
    whole[-1] = True
    steps = [
        {walked(table, state, text) for text in vocabulary.texts} - {-1} for state in range(states)
    ]
    cost = np.where(whole, 0, FAR)
    for _ in range(states):
        for state, after in enumerate(steps):
            cost[state] = min([cost[state], *(1 + cost[next] for next in after)])
    return Automaton(table, whole, np.minimum(cost, FAR).astype(np.int32))


def test_automaton_masks_match_single_token_walks(compiler: Compiler) -> None:
    draw, vocabulary = np.random.default_rng(1), compiler.vocabulary
    for _ in range(25):
        made = random_automaton(draw, vocabulary)
        after = [
            [walked(made.table, state, text) if text else -1 for text in vocabulary.tokens]
            for state in range(len(made.cost))
        ]
        for complete in (False, True):
            grammar = CompiledGrammar.from_automaton(
                vocabulary.own, len(made.cost), made.to_bytes(), complete
            )
            for most in (1, 2, 3, 9):
                matcher, state = grammar.start([EOS[0]], most), 0
                for left in range(most, 0, -1):
                    bits, closing = matcher.mask(words(VOCAB))
                    mask = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
                    mask = mask[:VOCAB].astype(bool)
                    free = np.array(after[state]) >= 0
                    fits = made.cost[np.array(after[state])] < left
                    wanted = free & (fits if complete else True)
                    assert closing == (complete and bool((free & ~fits).any()))
                    assert mask[EOS[0]] == made.accepting[state] == matcher.is_accepting
                    mask[EOS[0]] = wanted[EOS[0]]
                    assert np.array_equal(mask, wanted)
                    if not wanted.any():
                        break
                    token = int(draw.choice(np.flatnonzero(wanted)))
                    matcher.advance([token])
                    state = after[state][token]


def test_fewest_tokens_are_minimal(compiler: Compiler) -> None:
    draw, vocabulary = np.random.default_rng(2), compiler.vocabulary
    for _ in range(60):
        parts = draw.choice(vocabulary.tokens[4:], int(draw.integers(1, 6)))
        text = b"".join(bytes(part) for part in parts)[int(draw.integers(0, 2)) :]
        fewest = [0] + [FAR] * len(text)
        for end in range(1, len(text) + 1):
            for start in range(end):
                if text[start:end] in vocabulary.texts:
                    fewest[end] = min(fewest[end], fewest[start] + 1)
        found = vocabulary.shortest_tokenization(text)
        assert found is not None
        assert vocabulary.decode(found) == text
        assert len(found) == fewest[-1]
        endings = (vocabulary.shortest_tokenization(text[start:]) for start in range(len(text)))
        most = max((len(ending) for ending in endings if ending is not None), default=0)
        assert vocabulary.max_suffix_tokens(text) == most


def test_end_search_finds_a_near_end(compiler: Compiler) -> None:
    """llguidance's documents, byte by byte, against a table that knows the nearest end."""
    vocabulary = compiler.vocabulary
    made = compiler.compile(GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(PERSON), True))
    assert isinstance(made, Automaton)
    exact = automaton.native_grammar(made, vocabulary, complete=True)
    text = schema_grammar(json.dumps(PERSON))
    found = llguidance_backend.native_grammar(
        llguidance_backend.LlguidanceGrammar(text, Growth(20, 8)), vocabulary
    )
    draw, over = np.random.default_rng(3), list[int]()
    for _ in range(8):
        matcher, out = exact.start(EndConditions(tuple(EOS), 400)), b""
        for _ in range(30):
            row = np.zeros(words(VOCAB), np.int32)
            matcher.fill(row)
            able = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            able = able[~np.isin(able, EOS)]
            if not len(able):
                break
            token = int(draw.choice(able))
            matcher.advance(token)
            out += vocabulary.tokens[token]
            near, way = exact.needed(out), found.needed(out)
            if near is not None and way is not None:
                over.append(way - near)
    assert len(over) > 100
    assert min(over) >= 0, "a table is exact"
    assert max(over) <= 6, over


@pytest.mark.parametrize("table", [b"", b"\0" * 512])
def test_unknown_states_are_refused(compiler: Compiler, table: bytes) -> None:
    with pytest.raises(ValueError, match="no such state"):
        compiler.vocabulary.own.tokens_leading_to(table, 1, [0])

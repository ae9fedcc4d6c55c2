"""Patterns are searches: how short a text of one is, and that documents with them are whole."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from driver import Driver
from jsonschema import Draft202012Validator
from local import LocalWorker
from penstock.grammar import growth
from penstock.grammar.compile import Compiler
from penstock.grammar.formats import FORMATS
from penstock.grammar.protocol import GrammarKind, GrammarRejected, GrammarSpec
from penstock.grammar.schema import MOST_SIZE
from penstock.grammar.string_bounds import EndDistance, StringBounds
from penstock.rpc import shard_pb2 as pb
from schemas import COUNT, listing, record
from test_documents import CHECKER, made, shortest, worker
from test_tool_call_grammars import compile_grammar, compiler, wanted

__all__ = ["compiler", "worker"]
# With a text that is as short as any.
EVERYDAY = {
    "foo": "foo",
    "foo|bar": "foo",
    "https?://": "http://",
    r"^https?://": "http://",
    r"\.jpeg$": ".jpeg",
    r"^.*\.com$": ".com",
    r"\d{3}-\d{4}": "000-0000",
    r"^\d{5}(-\d{4})?$": "00000",
    r"^s3://.*/$": "s3:///",
    r"^[A-Z]{2}\d{2}[A-Z0-9]{4}\d{7}$": "AA00AAAA0000000",
    r"^[\w.-]+@[\w-]+\.[a-z]{2,}$": "a@a.aa",
    r"\w+@\w+\.\w+": "a@a.a",
    "^[a-z0-9]+(-[a-z0-9]+)*$": "a",
    r"^#([0-9a-fA-F]{3}){1,2}$": "#aaa",
    r"^\d{4}-\d{2}-\d{2}$": "0000-00-00",
    r"^v?\d+\.\d+\.\d+": "0.0.0",
    r"^(\d{1,3}\.){3}\d{1,3}$": "0.0.0.0",
    r"^\S+$": "a",
    r"^/([^/]+/)*$": "/",
    "(?i)error": "error",
    "^(GET|POST|PUT) /": "GET /",
    r"^.{8,64}$": "aaaaaaaa",
    "^$": "",
    "a.c": "aac",
    "[^a-z ]": "A",
    "acole": "acole",
    r"\p{Letter}cole": "acole",
    "^日本.*語$": "日本語",
    r'"\\': r'"\\'[:2],
    "^[a-z]{300}$": "a" * 300,
}
# jsonschema's own expressions know no \p, nor that an empty name is one.
LONG = 64  # characters of the longest that fits into the worker's sequences a few times
CHECKED = [p for p, text in EVERYDAY.items() if r"\p" not in p and len(text) < LONG]


def of_pattern(pattern: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern, **more}


def only(names: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An object whose members keep to patterns."""
    return {"type": "object", "patternProperties": names, "additionalProperties": False, **more}


def shapes() -> Iterator[tuple[str, dict[str, Any]]]:
    draw = random.Random(5)
    for pattern in CHECKED:
        one, other = of_pattern(pattern), of_pattern(draw.choice(CHECKED))
        yield f"string {pattern}", one
        yield f"members {pattern}", record(1, a=one, b=listing(one), c=other, n=COUNT)
        yield f"either {pattern}", listing({"anyOf": [one, other, {"type": "integer"}]}, minItems=1)
        yield f"names {pattern}", only({pattern: {"type": "integer"}})
        yield f"names of texts {pattern}", only({pattern: other}, minProperties=1)
        yield f"others {pattern}", {"type": "object", "patternProperties": {pattern: COUNT}}
        yield f"length {pattern}", of_pattern(pattern, maxLength=draw.randint(70, 300))
    for name in sorted(FORMATS):
        form = {"type": "string", "format": name}
        yield f"format {name}", record(1, a={**form, "maxLength": 200}, b={**form, "pattern": "2"})
    for number in (3, 100, 3600, 0.25):
        for kind in ("integer", "number"):
            each = {"type": kind, "multipleOf": number}
            yield f"multiples of {number} {kind}", record(1, a=each, b=listing(each))


SHAPES = dict(shapes())


@pytest.mark.parametrize("pattern", EVERYDAY)
def test_shortest_match_of_a_pattern_is_found(compiler: Compiler, pattern: str) -> None:
    text = json.dumps(EVERYDAY[pattern], ensure_ascii=False).encode()
    fewest = len(compiler.vocabulary.shortest_tokenization(text) or ())
    made = compile_grammar(
        compiler, GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(of_pattern(pattern)), True)
    )
    assert made.shortest == fewest
    assert made.needed(text) == 0
    assert made.needed(text[:-1]) == 1
    call = record(a=of_pattern(pattern))
    assert compile_grammar(compiler, wanted("hermes", {"f": call})).shortest < fewest + 40


def test_documents_with_patterns_complete_within_their_tokens(
    worker: tuple[LocalWorker, pb.Loaded],
) -> None:
    shard, loaded = worker
    least = {name: shortest(shard, schema) for name, schema in SHAPES.items()}
    driver = Driver([shard], loaded)  # type: ignore[list-item]
    wrong, counts = [], Counter[str]()
    for name, text, _ in made(driver, SHAPES, least, count=2):
        counts[name] += 1
        check = Draft202012Validator(SHAPES[name], format_checker=CHECKER)
        try:
            check.validate(json.loads(text))
        except Exception as error:
            wrong.append((name, text, str(error).splitlines()[0]))
    driver.stream.close()
    assert not wrong, (len(wrong), wrong[:10])
    assert set(counts.values()) == {2} and len(counts) == len(SHAPES) > 150


def test_distance_to_the_end_of_a_text(compiler: Compiler) -> None:
    spelling = StringBounds(compiler.vocabulary)
    assert spelling.distance_of(of_pattern("^ab{3}c$")) == EndDistance(7, 7)
    assert spelling.distance_of(of_pattern("foo")) == EndDistance(5, 8), "an escape may have begun"
    assert spelling.distance_of(
        of_pattern("^a*$", allOf=[{"pattern": "^(.{5})*$"}])
    ) == EndDistance(2, 5)
    assert spelling.distance_of({"type": "string", "minLength": 4}) == EndDistance(0, 0)
    assert spelling.distance_of({"type": "string", "format": "uuid"}) == EndDistance(38, 38)
    assert spelling.distance_of({"type": "integer", "multipleOf": 1000}) == EndDistance(1, 3)
    assert spelling.distance_of(only({"^abc$": {}})) == EndDistance(5, 5)


def test_long_lengths_have_only_an_upper_bound(compiler: Compiler) -> None:
    spelling = StringBounds(compiler.vocabulary)
    found = [spelling.distance_of(of_pattern("^[a-z]{3}", maxLength=n)) for n in range(20, 50)]
    exact, above = found[0], found[-1]
    assert exact.shortest == 5 <= above.shortest <= 4 * 5
    assert exact.farthest <= above.farthest <= 4 * exact.farthest
    assert set(found) == {exact, above}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (of_pattern("(a|b)*a(a|b){22}"), '`pattern` "(a|b)*a(a|b){22}"'),
        ({"type": "integer", "multipleOf": 86400}, "`multipleOf` 86400"),
    ],
)
def test_too_complex_pattern_is_refused(
    compiler: Compiler, schema: dict[str, Any], words: str
) -> None:
    for node in (schema, record(a=schema), listing({"anyOf": [schema, {"type": "null"}]})):
        with pytest.raises(GrammarRejected) as refused:
            compiler.compile(GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(node), True))
        assert words in str(refused.value) and "guided_complete" in str(refused.value)
        compiler.compile(GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(node), False))


def test_remaining_property_names_are_counted(compiler: Compiler) -> None:
    """A name that matches no short pattern is long."""
    schema = {"type": "object", "patternProperties": {"^.{0,40}$": {"type": "null"}}}
    each, once = growth.schema_growth(schema, compiler.vocabulary)
    assert 41 < once < 60 and each < MOST_SIZE

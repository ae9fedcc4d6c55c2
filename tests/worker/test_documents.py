"""A thousand documents by a model of random weights: all parse, all are valid."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from driver import ROOT, Driver, Running, greedy
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from local import LocalWorker
from penstock.grammar.formats import FORMATS
from penstock.grammar.llguidance_backend import schema_grammar
from penstock.grammar.schema import KEPT, for_llguidance
from penstock.grammar.vocabulary import Vocabulary
from penstock.rpc import shard_pb2 as pb
from schemas import EXPRESSIBLE, OTHERS, composed
from transformers import LlamaConfig, LlamaForCausalLM

BROOK = ROOT / "python" / "penstock" / "brook"
EOS = [2, 3]
COMPOSED = 24
EACH = 16  # documents of a schema
SLOTS = 192
CHECKER = Draft202012Validator.FORMAT_CHECKER
SCHEMAS = {**EXPRESSIBLE, **OTHERS, **{f"composed {i}": composed(i) for i in range(COMPOSED)}}


class Made(NamedTuple):
    name: str
    text: str
    ended: bool  # by an end token: the others were cut off


class Bytes:
    """What llguidance asks of a tokenizer, for one whose tokens are the 256 bytes."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([b]) for b in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalWorker, pb.Loaded]]:
    """A model of random weights with brook's tokenizer."""
    path = tmp_path_factory.mktemp("random") / "model"
    torch.manual_seed(3)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=4096,
        max_position_embeddings=512,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    shutil.copy(BROOK / "tokenizer.json", path)
    worker = LocalWorker()
    yield worker, worker.load(path, max_slots=SLOTS, max_step_tokens=1024)
    assert worker.shard.grammar_cache is not None
    worker.shard.grammar_cache.close()


def make_grammar(schema: Any, tokens: int) -> pb.Grammar:
    return pb.Grammar(
        kind=pb.Grammar.KIND_JSON_SCHEMA,
        text=json.dumps(schema),
        complete=True,
        max_new_tokens=tokens,
        end_token_ids=EOS,
    )


def shortest(worker: LocalWorker, schema: Any) -> int:
    """Tokens that a document needs, as the refusal of one token says; 1 if it does not."""
    sampling = pb.Sampling(temperature=1.0, top_p=1.0)
    reply = worker.stub.Prepare(
        pb.PrepareRequest(sampling=sampling, grammar=make_grammar(schema, 1))
    )
    if not reply.HasField("error"):
        return 1
    found = re.search(r"shortest document needs (\d+) tokens", reply.error.message)
    assert found, reply.error.message
    return int(found[1])


def made(
    driver: Driver, schemas: dict[str, Any], wanted: dict[str, int], count: int = EACH
) -> Iterator[Made]:
    """Documents of every schema, each with some tokens more than `wanted` at least."""
    vocabulary = Vocabulary(BROOK / "tokenizer.json", 4096)
    draw = random.Random(1)
    waiting: list[tuple[str, Running]] = []
    for name, least in wanted.items():
        for seed in range(count):
            most = least + draw.choice((0, 1, 2, 5, 20, 40, 80))
            sequence = greedy(
                [1, 500 + seed], most, temperature=draw.choice((0.7, 1.0, 3.0)), seed=seed
            )
            sequence.grammar = make_grammar(schemas[name], most)
            waiting.append((name, sequence))
    draw.shuffle(waiting)
    running: list[tuple[str, Running]] = []
    while waiting or running:
        while waiting and len(running) < SLOTS - 8:
            running.append(waiting.pop())
            driver.enter(running[-1][1])
        driver.step([sequence for _, sequence in running])
        for each in [r for r in running if r[1].done or r[1].tokens[-1:] in ([2], [3])]:
            running.remove(each)
            name, sequence = each
            driver.leave(sequence)
            assert sequence.error is None, (name, sequence.error)
            ended = sequence.tokens[-1] in EOS
            tokens = sequence.tokens[:-1] if ended else sequence.tokens
            yield Made(name, vocabulary.decode(tokens).decode(), ended)


def keywords(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield key
            yield from keywords(value)
    elif isinstance(node, list):
        for value in node:
            yield from keywords(value)


def test_schemas_cover_every_keyword_and_format() -> None:
    used = {word for schema in SCHEMAS.values() for word in keywords(schema)}
    assert used >= KEPT
    assert {s["format"] for s in OTHERS.values() if "format" in s} == FORMATS
    assert set(CHECKER.checkers) >= FORMATS, "pip install 'jsonschema[format-nongpl]'"


def test_a_thousand_documents_are_valid(worker: tuple[LocalWorker, pb.Loaded]) -> None:
    shard, loaded = worker
    wanted = {name: shortest(shard, schema) for name, schema in SCHEMAS.items()}
    driver = Driver([shard], loaded)  # type: ignore[list-item]
    checks = {
        name: validator_for(schema, Draft202012Validator)(schema, format_checker=CHECKER)
        for name, schema in SCHEMAS.items()
    }
    wrong, counts = [], Counter[str]()
    for name, text, ended in made(driver, SCHEMAS, wanted):
        counts[name] += 1
        counts["ended" if ended else "cut off"] += 1
        try:
            checks[name].validate(json.loads(text))
        except Exception as error:
            wrong.append((name, text, str(error).splitlines()[0]))
    driver.stream.close()
    assert not wrong, (len(wrong), Counter(n for n, _, _ in wrong), wrong[:10])
    assert all(counts[name] == EACH for name in SCHEMAS)
    assert EACH * len(SCHEMAS) > 1000
    assert min(counts["ended"], counts["cut off"]) > 250


@pytest.mark.parametrize("name", ["date", "date-time", "time", "hostname"])
@pytest.mark.parametrize("more", [{}, {"pattern": "2"}, {"maxLength": 30}], ids=str)
def test_formats_that_llguidance_does_not_enforce_are_enforced(
    name: str, more: dict[str, Any]
) -> None:
    """Days that only some years have, seconds that hardly a minute has, names without end."""
    days = ("2023-02-29", "2024-02-29", "1900-02-29", "2000-02-29", "2023-04-31", "0000-02-29")
    days += ("2023-12-31", "0001-01-01", "2023-13-01", "2023-1-1")
    times = (
        "23:59:60Z",
        "08:09:59.25+23:59",
        "24:00:00Z",
        "12:00:00",
        "2:00:00z",
        "12:30:00-07:60",
    )
    texts = [*days, *times, *(f"{d}T{t}" for d in days for t in times), f"2023-02-28t{times[1]}"]
    texts += ["a2", "a" * 63, ".".join(["b2"] * 84), ".".join(["b2"] * 90), "-2"]
    schema = {"type": "string", "format": name, **more}
    grammar = schema_grammar(json.dumps(for_llguidance(dict(schema))))
    tokenizer = LLTokenizer(TokenizerWrapper(Bytes()), n_vocab=257, slices=[])
    check = Draft202012Validator(schema, format_checker=CHECKER)
    for text in texts:
        matcher = LLMatcher(tokenizer, grammar)
        taken = matcher.consume_tokens(list(json.dumps(text).encode())) and matcher.is_accepting()
        assert taken == check.is_valid(text), text

"""Sequences with a grammar: the grammar allows every token, whatever shares the steps."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from driver import ROOT, Driver, Running, Worker, greedy, new_sequence, running
from jsonschema import validate
from local import LocalWorker
from penstock.faults import Fault
from penstock.grammar import GrammarKind, GrammarSpec
from penstock.grammar.cache import GrammarCache
from penstock.grammar.masks import FillResult
from penstock.grammar.vocabulary import Vocabulary
from penstock.rpc import shard_pb2 as pb
from trees import PERSON, TREE

BROOK = ROOT / "python" / "penstock" / "brook"
EOS = [2, 3]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(BROOK / "tokenizer.json", 4096)


def make_grammar(kind: str, text: Any, tokens: int, complete: bool = True) -> pb.Grammar:
    if not isinstance(text, str):
        text = json.dumps(text)
    return pb.Grammar(
        kind=f"KIND_{kind}",
        text=text,
        complete=complete,
        max_new_tokens=tokens,
        end_token_ids=EOS,
    )


def with_grammar(wanted: pb.Grammar, seed: int, prompt: tuple[int, ...] = (1, 500, 600)) -> Running:
    """Sampled hot, so that the model itself would hardly write what the grammar asks for."""
    sequence = greedy(list(prompt), wanted.max_new_tokens, temperature=5.0, seed=seed)
    sequence.grammar = wanted
    return sequence


def text(sequence: Running, vocabulary: Vocabulary) -> str:
    """Up to the first end token."""
    tokens = sequence.tokens
    ends = [place for place, token in enumerate(tokens) if token in EOS]
    return vocabulary.decode(tokens[: ends[0]] if ends else tokens).decode()


@pytest.mark.parametrize("schema", [PERSON, TREE], ids=["automaton", "llguidance"])
def test_documents_are_valid_within_any_token_limit(
    driver: Driver, vocabulary: Vocabulary, schema: Any
) -> None:
    sequences = [
        with_grammar(make_grammar("JSON_SCHEMA", schema, 16 + 2 * i), i) for i in range(24)
    ]
    plain = greedy([1, 500, 600], 30)
    for sequence in [*sequences, plain]:
        driver.enter(sequence)
    driver.finish([*sequences, plain])
    assert not [s.error for s in sequences if s.error]
    for sequence in sequences:
        validate(json.loads(text(sequence, vocabulary)), schema)
    alone = greedy([1, 500, 600], 30)
    driver.enter(alone)
    driver.finish([alone])
    assert alone.tokens == plain.tokens


def test_matcher_state_depends_only_on_emitted_tokens(
    driver: Driver, vocabulary: Vocabulary
) -> None:
    """Preempted and entered again, also beside the same text that goes on undisturbed."""
    for schema in (PERSON, TREE):
        wanted = make_grammar("JSON_SCHEMA", schema, 40)
        whole, moved = with_grammar(wanted, 5), with_grammar(wanted, 5)
        driver.enter(whole)
        driver.finish([whole])
        driver.enter(moved)
        for _ in range(11):
            driver.step([moved])
        driver.leave(moved)
        driver.step([])
        driver.enter(moved)
        driver.finish([moved])
        assert moved.tokens == whole.tokens


def test_pipelined_steps_give_the_same_tokens(driver: Driver, vocabulary: Vocabulary) -> None:
    """All requests are in the worker's hands before the first reply is read."""
    wanted = make_grammar("JSON_SCHEMA", PERSON, 30)
    alone, ahead = with_grammar(wanted, 3), with_grammar(wanted, 3)
    driver.enter(alone)
    driver.finish([alone])
    driver.enter(ahead)
    tables = [driver.free.pop() for _ in range(4)]
    driver.new = []
    driver.stream.send(
        finished=driver.finished,
        new=[new_sequence(ahead, 0, tables)],
        run_slots=[ahead.slot],
        run_tokens=[3],
    )
    driver.finished = [ahead.slot]
    for _ in range(3):
        driver.stream.send(run_slots=[ahead.slot], run_tokens=[1])
    for _ in range(26):
        driver._take(driver.stream.receive(), {ahead.slot: ahead})
        driver.stream.send(run_slots=[ahead.slot], run_tokens=[1])
    for _ in range(4):
        driver._take(driver.stream.receive(), {ahead.slot: ahead})
    assert ahead.tokens == alone.tokens


def test_fork_continues_the_grammar_of_its_source(driver: Driver, vocabulary: Vocabulary) -> None:
    for schema in (PERSON, TREE):
        source, copy = (with_grammar(make_grammar("JSON_SCHEMA", schema, 30), 3) for _ in range(2))
        driver.enter(source)
        for _ in range(4):
            driver.step([source])
        copy.slot = driver.slots.pop()
        blocks = [driver.free.pop() for _ in range(3)]
        fork = pb.SlotFork(
            source=source.slot,
            destination=copy.slot,
            tables=[pb.BlockTable(group=0, blocks=blocks)],
            seed=99,
        )
        copies = pb.BlockCopies(group=0, sources=source.blocks[:1], destinations=blocks[:1])
        driver.stream.send(forks=[fork], copies=[copies])
        driver.stream.receive()
        copy.tokens, copy.computed, copy.blocks = list(source.tokens), source.computed, blocks
        driver.finish([source, copy])
        for sequence in (source, copy):
            validate(json.loads(text(sequence, vocabulary)), schema)
        assert source.tokens != copy.tokens


def test_closing_slots_are_reported(driver: Driver, vocabulary: Vocabulary) -> None:
    """`closing` names the slots whose documents were kept short."""
    long, short = (with_grammar(make_grammar("JSON_SCHEMA", PERSON, n), 1) for n in (200, 10))
    long.wanted = 8
    driver.enter(long)
    driver.enter(short)
    reported: set[int] = set()
    while not (long.done and short.done):
        reported |= set(driver.step([long, short]).closing)
    assert reported == {short.slot}
    driver.leave(long)
    driver.leave(short)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (make_grammar("JSON_SCHEMA", {"not": {}}, 9), "no document satisfies the schema"),
        (
            make_grammar("JSON_SCHEMA", {"type": "array", "uniqueItems": True, "minItems": 2}, 9),
            "the schema keyword `uniqueItems` (in `#`)",
        ),
        (make_grammar("JSON_SCHEMA", {"type": ["string", "text"]}, 9), "`type` (in `#`) must be"),
        (
            make_grammar("JSON_SCHEMA", {"items": {"$ref": "#/$defs/a"}}, 9),
            '`$ref` "#/$defs/a" (in `#/items`)',
        ),
        (make_grammar("JSON_SCHEMA", "[" * 5000, 9), "not JSON"),
        (
            make_grammar("JSON_SCHEMA", {"type": "string", "minLength": 400}, 9),
            "shortest document needs",
        ),
        (
            make_grammar("JSON_SCHEMA", {"type": "integer", "minimum": 5, "maximum": 3}, 9),
            "its minimum 5 is greater than its maximum 3",
        ),
        (make_grammar("REGEX", "(", 9), "cannot be compiled"),
        (make_grammar("REGEX", "(?=a)b", 9), "cannot be compiled"),
        (make_grammar("REGEX", "[0-9]{12}", 3), "needs"),
        (make_grammar("GRAMMAR", "nonsense", 9, complete=False), "the grammar cannot be read"),
        (pb.Grammar(kind="KIND_UNSPECIFIED", text="a"), "no grammar of kind 0"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_invalid_grammars_are_refused_by_prepare(
    loaded: tuple[LocalWorker, pb.Loaded], wanted: pb.Grammar, words: str
) -> None:
    sampling = pb.Sampling(temperature=1.0, top_p=1.0)
    reply = loaded[0].stub.Prepare(pb.PrepareRequest(sampling=sampling, grammar=wanted))
    assert reply.error.kind == pb.RequestError.KIND_INVALID
    assert words in reply.error.message


def test_hostile_grammar_affects_only_its_sender(
    loaded: tuple[LocalWorker, pb.Loaded], driver: Driver
) -> None:
    """It is given up within its limits, and once; a stream beside it goes on meanwhile."""
    hostile = make_grammar("REGEX", "(a|b)*a(a|b){22}", 40, complete=False)
    sequence = with_grammar(make_grammar("JSON_SCHEMA", PERSON, 200), 1)
    driver.enter(sequence)
    worker, _ = loaded
    errors: list[str] = []

    def prepare() -> None:
        sampling = pb.Sampling(temperature=1.0, top_p=1.0)
        reply = worker.stub.Prepare(pb.PrepareRequest(sampling=sampling, grammar=hostile))
        errors.append(reply.error.message)

    thread = threading.Thread(target=prepare)
    thread.start()
    steps = 0
    while thread.is_alive():
        if sequence.done:
            driver.leave(sequence)
            sequence = with_grammar(make_grammar("JSON_SCHEMA", PERSON, 200), steps)
            driver.enter(sequence)
        driver.step([sequence])
        steps += 1
    assert "time or memory" in errors[0] or "states" in errors[0]
    assert steps > 20
    driver.leave(sequence)


def test_cheap_grammars_are_not_blocked_by_expensive_ones() -> None:
    """However many of those there are; most of them are refused without having been tried long."""
    grammar_cache = GrammarCache(BROOK / "tokenizer.json", 4096)

    def prepare(kind: GrammarKind, text: str) -> str:
        try:
            grammar_cache.prepare(GrammarSpec(kind, text, False), 9)
        except Fault as fault:
            return str(fault)
        return ""

    with ThreadPoolExecutor(20) as pool:
        hostile = [f"(a|b)*a(a|b){{22}}c{{{n}}}" for n in range(1, 10)]
        slow = [pool.submit(prepare, GrammarKind.REGEX, text) for text in hostile]
        while not any(future.done() for future in slow):
            time.sleep(0.01)
        quick = [pool.submit(prepare, GrammarKind.REGEX, f"[a-f]{{{n}}}") for n in range(1, 9)]
        assert [future.result() for future in quick] == [""] * 8
        assert sum(not future.done() for future in slow) > 0
        grammar_cache.close()
        said = [future.result() for future in slow]
    assert all(said) and any("too many such grammars wait" in text for text in said)


def test_dead_end_grammar_fails_only_its_sequence(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logprobs in the reply belong to the other sequences' tokens."""
    failing = with_grammar(make_grammar("JSON_SCHEMA", PERSON, 60), 1)
    asking = greedy([1, 500, 700], 4, top_logprobs=3)
    for sequence in (failing, asking):
        driver.enter(sequence)
    driver.step([failing, asking])

    def fill(*_: Any) -> FillResult:
        return FillResult(refused=[(0, "it became too complex")])

    monkeypatch.setattr("penstock.grammar.masks.fill", fill)
    reply = driver.step([failing, asking])
    assert failing.error == "it became too complex"
    assert list(reply.top_counts) == [3]
    assert reply.top_logprobs[0] == pytest.approx(reply.logprobs[0], abs=1e-4)
    driver.finish([failing, asking])


def test_lark_ebnf_and_regex_grammars(driver: Driver, vocabulary: Vocabulary) -> None:
    lark = 'start: "select " column ("," column)*\ncolumn: "a" | "b" column'
    ebnf = 'root ::= "select " column ("," column)*\ncolumn ::= "a" | "b" column'
    phone = "[0-9]{3}-[0-9]{4}( x[0-9]+)?"
    wanted = [
        make_grammar("GRAMMAR", lark, 40, complete=False),
        make_grammar("GRAMMAR", ebnf, 40, complete=False),
        make_grammar("REGEX", phone, 12),
        make_grammar("REGEX", phone, 30, complete=False),
    ]
    sequences = [with_grammar(wanted[i % 4], i) for i in range(16)]
    for sequence in sequences:
        driver.enter(sequence)
    driver.finish(sequences)
    for i, sequence in enumerate(sequences):
        assert sequence.error is None
        said = text(sequence, vocabulary)
        if i % 4 < 2:
            assert re.fullmatch(r"(s(e(l(e(c(t( ((b*a,)*b*a?)?)?)?)?)?)?)?)?", said), said
        elif i % 4 == 2:
            assert re.fullmatch(phone, said), said
        else:
            assert re.fullmatch(r"[0-9]{3}-[0-9]{4}( (x[0-9]*)?)?", said), said


def compilations(worker: Worker) -> list[int]:
    """Processes that compile one grammar each, for a worker: children of its child."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    return [own for own, parent in parents.items() if parents.get(parent) == worker.pid]


def test_rank_without_its_grammar_does_not_run_unmasked() -> None:
    """What took one rank too long must not leave that rank out of a step, nor in it unguided."""
    sampling = pb.Sampling(temperature=1.0, top_p=1.0)
    lost = make_grammar("REGEX", "(a|b)*a(a|b){12}", 40, complete=False)
    easy = make_grammar("REGEX", "a+", 40, complete=False)

    def prepare(worker: Worker, wanted: pb.Grammar) -> str:
        reply = worker.stub.Prepare(pb.PrepareRequest(sampling=sampling, grammar=wanted))
        return str(reply.error.message)

    for workers, loaded in running(BROOK, 2):
        assert [prepare(worker, easy) for worker in workers] == ["", ""]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(prepare, workers[1], lost)
            while not waiting.done():
                for process in compilations(workers[1]):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
            assert "too much time or memory" in waiting.result()
        assert prepare(workers[0], lost) == ""
        driver = Driver(workers, loaded)
        driver.enter(with_grammar(easy, 1))
        sequence = with_grammar(lost, 1)
        driver.enter(sequence)
        driver.stream.send(
            new=[new_sequence(s, 0, [i]) for i, s in enumerate(driver.new)],
            run_slots=[s.slot for s in driver.new],
            run_tokens=[3, 3],
        )
        with pytest.raises(grpc.RpcError, match="all ranks had prepared is lost"):
            next(driver.stream.replies[1])


def test_step_does_not_wait_for_an_evicted_grammar() -> None:
    """Nor does the step after it, planned before the router knew; prepared again, it runs."""
    wanted = make_grammar("JSON_SCHEMA", PERSON, 60)
    for workers, loaded in running(BROOK, 1):
        driver = Driver(workers, loaded)
        sequence, other = with_grammar(wanted, 1), greedy([1, 500, 600], 4)
        sequence.slot, other.slot = 0, 1
        new = [new_sequence(sequence, 0, [0]), new_sequence(other, 0, [1])]
        known = len(sequence.prompt)
        driver.stream.send(new=new, run_slots=[0, 1], run_tokens=[known, 3])
        driver.stream.send(run_slots=[0, 1], run_tokens=[1, 1])
        first, second = driver.stream.receive(), driver.stream.receive()
        assert [e.error.kind for e in first.errors] == [pb.RequestError.KIND_UNPREPARED]
        assert [e.slot for e in first.errors] == [0] and "memory" in first.errors[0].error.message
        assert list(first.slots) == list(second.slots) == [1] and not second.errors
        driver.stream.send(finished=[0, 1])
        driver.stream.receive()
        driver.enter(sequence)
        driver.finish([sequence])
        assert sequence.error is None and len(sequence.tokens) > 4

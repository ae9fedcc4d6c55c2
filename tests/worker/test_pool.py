"""Who waits for whom where grammars are compiled."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from penstock.grammar import compiler_pool as pools
from penstock.grammar import compiler_process as processes
from penstock.grammar import cost
from penstock.grammar.cache import GrammarCache
from penstock.grammar.compiler_pool import CompilerPool
from penstock.grammar.compiler_process import CompileRequest, CompilerProcess
from penstock.grammar.fair_queue import Caller, CompilationCancelled, FairSemaphore
from penstock.grammar.protocol import EndConditions, GrammarKind, GrammarRejected, GrammarSpec
from penstock.grammar.vocabulary import NoTokenizer
from test_grammars import BROOK

VOCAB = 4096
TOKENIZER = BROOK / "tokenizer.json"


def running_compilations(pool: CompilerPool) -> list[CompileRequest]:
    """What is being compiled now."""
    run = pool._process._run
    return [] if run is None else [each for each in run._requests.values() if each.process]


def until(pool: CompilerPool, count: int) -> list[CompileRequest]:
    """Waits until `count` grammars are compiled at once."""
    while len(found := running_compilations(pool)) < count:
        time.sleep(0.005)
    return found


def long(number: int) -> GrammarSpec:
    """Of some hundred milliseconds of processor time."""
    return GrammarSpec(GrammarKind.REGEX, f"(a|b)*a(a|b){{11}}c{{{number}}}", False)


@pytest.fixture
def pool() -> Iterator[CompilerPool]:
    made = CompilerPool(TOKENIZER, VOCAB, quick=4)
    yield made
    made.close()


def test_grammars_are_compiled_in_parallel(pool: CompilerPool) -> None:
    """As after a restart, when all running sequences need theirs again."""
    most = 0
    with ThreadPoolExecutor(12) as threads:
        made = [threads.submit(pool.compile, long(number)) for number in range(1, 13)]
        while not all(future.done() for future in made):
            most = max(most, len(running_compilations(pool)))
            time.sleep(0.002)
    assert all(future.result() for future in made)
    assert most == 4
    assert pool._process._count == len(made)


def test_shared_grammar_is_compiled_once() -> None:
    grammar_cache = GrammarCache(TOKENIZER, VOCAB)
    ready = threading.Barrier(32)
    wanted = GrammarSpec(GrammarKind.REGEX, "[a-f]{3}", True)

    def matcher(_: int) -> bool:
        ready.wait()
        return grammar_cache.matcher(wanted, EndConditions((2,), 9), []).is_accepting

    with ThreadPoolExecutor(32) as threads:
        assert list(threads.map(matcher, range(32))) == [False] * 32
    assert grammar_cache._pool._process._count == 1
    grammar_cache.close()


def test_unscheduled_compilation_keeps_its_quick_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what has used one makes room for those who wait."""
    monkeypatch.setattr(pools, "QUICK_SECONDS", 0.1)
    pool = CompilerPool(TOKENIZER, VOCAB, quick=1)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(pool.compile, long(1))
        (held,) = until(pool, 1)
        assert held.process is not None
        os.kill(held.process, signal.SIGSTOP)
        second = threads.submit(pool.compile, GrammarSpec(GrammarKind.REGEX, "b+", False))
        while not pool._quick.waiting:
            time.sleep(0.005)
        time.sleep(0.5)
        stopped = held.cpu_seconds()
        assert stopped < 0.1, "it was stopped too late for this test"
        assert [each.number for each in running_compilations(pool)] == [held.number]
        os.kill(held.process, signal.SIGCONT)
        assert first.result() and second.result()
    pool.close()
    assert held.cpu_seconds() == 0.0


def test_refused_grammar_is_cached_without_its_text() -> None:
    """It is compiled once, and its text is not kept."""
    grammar_cache = GrammarCache(TOKENIZER, VOCAB)
    bad = GrammarSpec(
        GrammarKind.JSON_SCHEMA, json.dumps({"title": "x" * 100_000, "not": {}}), True
    )
    said = set()
    for _ in range(3):
        with pytest.raises(GrammarRejected) as caught:
            grammar_cache.prepare(bad, 9)
        said.add(str(caught.value))
    (text,) = said
    assert text.startswith("no document satisfies the schema")
    assert grammar_cache._pool._process._count == 1
    ((digest, kept),) = grammar_cache._rejections.items()
    assert len(digest) + len(kept[1]) < 200
    grammar_cache.close()


def test_unusable_tokenizer_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    process = CompilerProcess(tmp_path / "tokenizer.json", VOCAB)
    for _ in range(3):
        with pytest.raises(NoTokenizer, match="cannot be used"):
            process.submit(GrammarSpec(GrammarKind.REGEX, "a", False))
        monkeypatch.setattr(processes.subprocess, "Popen", None)


def endless(number: int) -> GrammarSpec:
    """Costly by its repetitions, and not done before its limits end it."""
    return GrammarSpec(GrammarKind.REGEX, f".{{{number},30000}}", False)


def outcome(grammar_cache: GrammarCache, wanted: GrammarSpec, caller: Caller) -> str:
    """How the caller's wait for a grammar ended."""
    try:
        grammar_cache.prepare(wanted, 9, caller)
    except (GrammarRejected, CompilationCancelled) as error:
        return type(error).__name__
    return "ready"


def idle(grammar_cache: GrammarCache) -> bool:
    """Whether nothing is compiled, and nobody waits for it."""
    pool = grammar_cache._pool
    lanes = pool._quick, pool._slow
    busy = (
        any(lane.waiting or lane.held for lane in lanes)
        or running_compilations(pool)
        or grammar_cache._pending
    )
    return not busy


def wait_for(condition: Callable[[], bool]) -> None:
    """Ends by the test's own time limit, if at all."""
    while not condition():
        time.sleep(0.005)


def test_abandoned_compilations_are_cancelled() -> None:
    """Neither what ran nor what waited: the helper's processes end, and all places are free."""
    grammar_cache = GrammarCache(TOKENIZER, VOCAB)
    callers = [Caller(f"client {number}") for number in range(6)]
    with ThreadPoolExecutor(6) as threads:
        said = [
            threads.submit(outcome, grammar_cache, endless(number), caller)
            for number, caller in enumerate(callers)
        ]
        (held,) = until(grammar_cache._pool, 1)
        wait_for(lambda: grammar_cache._pool._slow.waiting == 5)
        process = Path(f"/proc/{held.process}")
        assert process.exists()
        for caller in callers:
            caller.cancel()
        assert [future.result() for future in said] == ["CompilationCancelled"] * 6
    wait_for(lambda: idle(grammar_cache) and not process.exists())
    assert not grammar_cache._rejections, "that nobody waited is no refusal"
    assert (
        outcome(grammar_cache, GrammarSpec(GrammarKind.REGEX, "[a-f]{3}", False), Caller())
        == "ready"
    )
    grammar_cache.close()


def test_compilation_continues_for_the_remaining_callers() -> None:
    grammar_cache = GrammarCache(TOKENIZER, VOCAB)
    first, second = Caller(), Caller()
    with ThreadPoolExecutor(2) as threads:
        leaving = threads.submit(outcome, grammar_cache, long(1), first)
        (held,) = until(grammar_cache._pool, 1)
        assert held.process is not None
        os.kill(held.process, signal.SIGSTOP)
        staying = threads.submit(outcome, grammar_cache, long(1), second)
        wait_for(lambda: grammar_cache._pending[long(1)]._waiting == 2)
        first.cancel()
        assert leaving.result() == "CompilationCancelled"
        os.kill(held.process, signal.SIGCONT)
        assert staying.result() == "ready"
    assert grammar_cache._pool._process._count == 1
    grammar_cache.close()


def test_cheap_grammars_do_not_wait_for_expensive_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is costly by its repetitions has no place of the quick lane, not even a first one."""
    grammar_cache = GrammarCache(TOKENIZER, VOCAB)
    monkeypatch.setattr(pools, "QUICK_SECONDS", 1e9)
    quick = grammar_cache._pool._quick
    callers = [Caller(f"client {number}") for number in range(4)]
    with ThreadPoolExecutor(4) as threads:
        for number, caller in enumerate(callers):
            threads.submit(outcome, grammar_cache, endless(number), caller)
        (held,) = until(grammar_cache._pool, 1)
        assert held.process is not None
        os.kill(held.process, signal.SIGSTOP)
        wait_for(lambda: grammar_cache._pool._slow.waiting == 3)
        assert quick.held == quick.waiting == 0
        assert (
            outcome(grammar_cache, GrammarSpec(GrammarKind.REGEX, "[a-f]{3}", False), Caller("x"))
            == "ready"
        )
        assert [each.number for each in running_compilations(grammar_cache._pool)] == [held.number]
        for caller in callers:
            caller.cancel()
    wait_for(lambda: idle(grammar_cache))
    grammar_cache.close()


def test_client_has_one_expensive_compilation_at_a_time() -> None:
    """Two more wait, and others are refused; another client's goes before those that wait."""
    lane = FairSemaphore(2, 1)
    own = [Caller("a") for _ in range(4)]
    assert lane.enter(own[0], 4, 2)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(lane.enter, caller, 4, 2) for caller in own[1:3]]
        wait_for(lambda: lane.waiting == 2)
        assert not lane.enter(own[3], 4, 2), "a third one waits"
        other = Caller("b")
        assert lane.enter(other, 4, 2), "a place is free, which client a may not have"
        third = Caller("c")
        late = threads.submit(lane.enter, third, 4, 2)
        wait_for(lambda: lane.waiting == 3)
        lane.leave(other)
        assert late.result()
        assert lane.waiting == 2
        own[1].cancel()
        with pytest.raises(CompilationCancelled):
            waiting[0].result()
        lane.leave(own[0])
        assert waiting[1].result()
        lane.leave(own[2])
        lane.leave(third)
    assert lane.held == lane.waiting == 0


def test_compilations_of_clients_are_scheduled_round_robin() -> None:
    """However many grammars one of them sends first."""
    lane = FairSemaphore(1)
    holder = Caller("a")
    assert lane.enter(holder)
    order: list[str] = []

    def turn(caller: Caller) -> None:
        lane.enter(caller)
        order.append(caller.client)
        lane.leave(caller)

    with ThreadPoolExecutor(8) as threads:
        for count, client in enumerate("aaaaabab", 1):
            threads.submit(turn, Caller(client))
            wait_for(lambda count=count: lane.waiting == count)  # type: ignore[misc]
        lane.leave(holder)
    assert order[:4] == ["b", "a", "b", "a"]


@pytest.mark.parametrize(
    ("regex", "states"),
    [
        ("", 0),
        ("abc", 3),
        ("(ab{2}){100}", 300),
        ("[a-f]{4,}", 4),
        ("[]a]{3}x", 4),
        ("[^]a]{2}", 22),
        ("(.|b){1,30000}", 360_000),
        (r"\p{Greek}{20}\{3}", 6003),
        (r"\.{3}", 3),
        ("((((a{1000}){1000}){1000}){1000}){1000}", cost.MOST),
        ("){3}{4}((", 0),
    ],
)
def test_cost_of_a_regex(regex: str, states: int) -> None:
    assert cost.states(regex) == states


def test_word_list_is_not_costly() -> None:
    words = "|".join(f"word{number}" for number in range(5000))
    assert not cost.is_costly(words)
    assert cost.is_costly(f"({words}){{3}}")
    assert cost.is_costly(".{500}") and not cost.is_costly(".{200}")

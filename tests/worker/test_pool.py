"""Who waits for whom where guides are compiled."""

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
from penstock.guidance import cost
from penstock.guidance import pool as pools
from penstock.guidance import process as processes
from penstock.guidance.library import Library
from penstock.guidance.pool import Pool
from penstock.guidance.process import Asked, Process
from penstock.guidance.protocol import Ends, Kind, Refused, Wanted
from penstock.guidance.turns import Caller, Lane, Withdrawn
from penstock.guidance.vocabulary import NoTokenizer
from test_guides import BROOK

VOCAB = 4096
TOKENIZER = BROOK / "tokenizer.json"


def asked(pool: Pool) -> list[Asked]:
    """What is being compiled now."""
    run = pool._process._run
    return [] if run is None else [each for each in run._asked.values() if each.process]


def until(pool: Pool, count: int) -> list[Asked]:
    """Waits for so many guides to be compiled at once."""
    while len(found := asked(pool)) < count:
        time.sleep(0.005)
    return found


def long(number: int) -> Wanted:
    """Of some hundred milliseconds of processor time."""
    return Wanted(Kind.REGEX, f"(a|b)*a(a|b){{11}}c{{{number}}}", False)


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(TOKENIZER, VOCAB, quick=4)
    yield made
    made.close()


def test_guides_are_compiled_side_by_side(pool: Pool) -> None:
    """As after a restart, when all running sequences need theirs again."""
    most = 0
    with ThreadPoolExecutor(12) as threads:
        made = [threads.submit(pool.compile, long(number)) for number in range(1, 13)]
        while not all(future.done() for future in made):
            most = max(most, len(asked(pool)))
            time.sleep(0.002)
    assert all(future.result() for future in made)
    assert most == 4
    assert pool._process._count == len(made)


def test_a_guide_is_compiled_once_for_all_who_follow_it() -> None:
    library = Library(TOKENIZER, VOCAB)
    ready = threading.Barrier(32)
    wanted = Wanted(Kind.REGEX, "[a-f]{3}", True)

    def cursor(_: int) -> bool:
        ready.wait()
        return library.cursor(wanted, Ends((2,), 9), []).whole

    with ThreadPoolExecutor(32) as threads:
        assert list(threads.map(cursor, range(32))) == [False] * 32
    assert library._pool._process._count == 1
    library.close()


def test_a_guide_that_gets_no_processor_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what has used one makes room for those who wait."""
    monkeypatch.setattr(pools, "QUICK_SECONDS", 0.1)
    pool = Pool(TOKENIZER, VOCAB, quick=1)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(pool.compile, long(1))
        (held,) = until(pool, 1)
        assert held.process is not None
        os.kill(held.process, signal.SIGSTOP)
        second = threads.submit(pool.compile, Wanted(Kind.REGEX, "b+", False))
        while not pool._quick.waiting:
            time.sleep(0.005)
        time.sleep(0.5)
        stopped = held.used()
        assert stopped < 0.1, "it was stopped too late for this test"
        assert [each.number for each in asked(pool)] == [held.number]
        os.kill(held.process, signal.SIGCONT)
        assert first.result() and second.result()
    pool.close()
    assert held.used() == 0.0


def test_what_was_refused_is_known_by_little() -> None:
    """It is compiled once, and its text is not kept."""
    library = Library(TOKENIZER, VOCAB)
    bad = Wanted(Kind.JSON_SCHEMA, json.dumps({"title": "x" * 100_000, "not": {}}), True)
    said = set()
    for _ in range(3):
        with pytest.raises(Refused) as caught:
            library.prepare(bad, 9)
        said.add(str(caught.value))
    (text,) = said
    assert text.startswith("no document satisfies the schema")
    assert library._pool._process._count == 1
    ((digest, kept),) = library._refusals.items()
    assert len(digest) + len(kept[1]) < 200
    library.close()


def test_a_tokenizer_that_cannot_be_used_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    process = Process(tmp_path / "tokenizer.json", VOCAB)
    for _ in range(3):
        with pytest.raises(NoTokenizer, match="cannot be used"):
            process.ask(Wanted(Kind.REGEX, "a", False))
        monkeypatch.setattr(processes.subprocess, "Popen", None)


def endless(number: int) -> Wanted:
    """Costly by its repetitions, and not done before its limits end it."""
    return Wanted(Kind.REGEX, f".{{{number},30000}}", False)


def outcome(library: Library, wanted: Wanted, caller: Caller) -> str:
    """How the caller's wait for a guide ended."""
    try:
        library.prepare(wanted, 9, caller)
    except (Refused, Withdrawn) as error:
        return type(error).__name__
    return "ready"


def idle(library: Library) -> bool:
    """Whether nothing is compiled, and nobody waits for it."""
    pool = library._pool
    lanes = pool._quick, pool._slow
    busy = any(lane.waiting or lane.held for lane in lanes) or asked(pool) or library._underway
    return not busy


def wait_for(condition: Callable[[], bool]) -> None:
    """Ends by the test's own time limit, if at all."""
    while not condition():
        time.sleep(0.005)


def test_nothing_is_compiled_for_those_that_left() -> None:
    """Neither what ran nor what waited: the helper's processes end, and all places are free."""
    library = Library(TOKENIZER, VOCAB)
    callers = [Caller(f"client {number}") for number in range(6)]
    with ThreadPoolExecutor(6) as threads:
        said = [
            threads.submit(outcome, library, endless(number), caller)
            for number, caller in enumerate(callers)
        ]
        (held,) = until(library._pool, 1)
        wait_for(lambda: library._pool._slow.waiting == 5)
        process = Path(f"/proc/{held.process}")
        assert process.exists()
        for caller in callers:
            caller.withdraw()
        assert [future.result() for future in said] == ["Withdrawn"] * 6
    wait_for(lambda: idle(library) and not process.exists())
    assert not library._refusals, "that nobody waited is no refusal"
    assert outcome(library, Wanted(Kind.REGEX, "[a-f]{3}", False), Caller()) == "ready"
    library.close()


def test_a_guide_goes_on_for_those_that_stay() -> None:
    library = Library(TOKENIZER, VOCAB)
    first, second = Caller(), Caller()
    with ThreadPoolExecutor(2) as threads:
        leaving = threads.submit(outcome, library, long(1), first)
        (held,) = until(library._pool, 1)
        assert held.process is not None
        os.kill(held.process, signal.SIGSTOP)
        staying = threads.submit(outcome, library, long(1), second)
        wait_for(lambda: library._underway[long(1)]._waiting == 2)
        first.withdraw()
        assert leaving.result() == "Withdrawn"
        os.kill(held.process, signal.SIGCONT)
        assert staying.result() == "ready"
    assert library._pool._process._count == 1
    library.close()


def test_quick_guides_do_not_wait_for_costly_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is costly by its repetitions has no place of the quick lane, not even a first one."""
    library = Library(TOKENIZER, VOCAB)
    monkeypatch.setattr(pools, "QUICK_SECONDS", 1e9)
    quick = library._pool._quick
    callers = [Caller(f"client {number}") for number in range(4)]
    with ThreadPoolExecutor(4) as threads:
        for number, caller in enumerate(callers):
            threads.submit(outcome, library, endless(number), caller)
        (held,) = until(library._pool, 1)
        assert held.process is not None
        os.kill(held.process, signal.SIGSTOP)
        wait_for(lambda: library._pool._slow.waiting == 3)
        assert quick.held == quick.waiting == 0
        assert outcome(library, Wanted(Kind.REGEX, "[a-f]{3}", False), Caller("x")) == "ready"
        assert [each.number for each in asked(library._pool)] == [held.number]
        for caller in callers:
            caller.withdraw()
    wait_for(lambda: idle(library))
    library.close()


def test_a_client_has_one_costly_guide_at_a_time() -> None:
    """Two more wait, and others are refused; another client's goes before those that wait."""
    lane = Lane(2, 1)
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
        own[1].withdraw()
        with pytest.raises(Withdrawn):
            waiting[0].result()
        lane.leave(own[0])
        assert waiting[1].result()
        lane.leave(own[2])
        lane.leave(third)
    assert lane.held == lane.waiting == 0


def test_clients_take_turns() -> None:
    """However many guides one of them sends first."""
    lane = Lane(1)
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
def test_the_cost_of_an_expression(regex: str, states: int) -> None:
    assert cost.states(regex) == states


def test_a_list_of_words_is_not_costly() -> None:
    words = "|".join(f"word{number}" for number in range(5000))
    assert not cost.is_costly(words)
    assert cost.is_costly(f"({words}){{3}}")
    assert cost.is_costly(".{500}") and not cost.is_costly(".{200}")

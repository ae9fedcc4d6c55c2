"""Who waits for whom where guides are compiled."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from penstock.guidance import pool as pools
from penstock.guidance import process as processes
from penstock.guidance.library import Library
from penstock.guidance.pool import Pool
from penstock.guidance.process import Asked, Process
from penstock.guidance.protocol import Ends, Kind, Refused, Wanted
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
    assert said == {"the schema keyword `not` (in `#`) is not supported"}
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

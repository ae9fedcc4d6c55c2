"""Two minutes of `make faults`: no stream is broken or changed, and nothing is left behind."""

from __future__ import annotations

from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from tests.faults.answers import Answer, Choice
from tests.faults.compare import difference
from tests.faults.load import drawn, draws
from tests.faults.run import Plan, run
from tests.faults.schedule import Kind, faults
from tests.faults.server import FaultyServer
from tests.serving import parent, wait_for
from tests.small_model import write_llama

# Without those that take 30 s, and without the launcher's end, which tests/e2e has.
QUICK = [
    Kind.KILL, Kind.SEGV, Kind.RAISE, Kind.OOM, Kind.CLOSE, Kind.GARBAGE, Kind.STRANGER,
    Kind.DISK, Kind.CLOCK, Kind.TWICE,
]  # fmt: skip


@pytest.mark.parametrize(
    "plan",
    [
        Plan(seed=11, kinds=QUICK, requests=12, most=8, patient=True),
        Plan(
            seed=12, kinds=[Kind.KILL, Kind.RAISE], world_size=2, requests=6, most=2, patient=True
        ),
    ],
    ids=["1 worker", "2 workers"],
)
def test_streams_survive_what_happens_to_workers(plan: Plan, tmp_path: Path) -> None:
    model = write_llama(tmp_path / "brook")
    report = run(plan, tmp_path / "serve.log", ["--model", str(model)])
    assert report.good, report.text()
    assert report.losses > 0 and report.streams_hit > 0, report.text()


def test_workers_that_were_forked_carry_out_orders_as_others_do(tmp_path: Path) -> None:
    with FaultyServer(tmp_path / "serve.log", ["--standby"]) as server:
        for _ in range(2):
            worker = server.worker(0)
            assert server.order(0, {"do": "close"}) == worker
            wait_for(partial(has_ended, worker))
            server.wait_ready()


def has_ended(pid: int) -> bool:
    return parent(pid) is None


def test_a_seed_decides_load_and_faults() -> None:
    assert drawn(3, 40) == drawn(3, 40) != drawn(4, 40)
    assert {request.kind for request in drawn(3, 40)} == set(draws())
    one, other = (list(islice(faults(3, list(Kind), 2), 60)) for _ in range(2))
    assert one == other and {fault.kind for fault in one} == set(Kind)


def whole() -> Answer:
    choice = Choice(text="a fox", tokens=[5, 7], logprobs=[-0.5, -0.25], finish="length")
    return Answer(status=200, choices={0: choice}, ended=True)


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("tokens", [5, 8], "token 1 is 8, not 7"),
        ("tokens", [5], "1 tokens, not 2"),
        ("text", "a fix", "letter 3 is 'i', not 'o'"),
        ("logprobs", [-0.5, -0.2501], "logprob 1"),
        ("logprobs", [-0.5], "1 logprobs, not 2"),
        ("finish", "stop", "finish reason stop, not length"),
    ],
)
def test_each_change_of_an_answer_is_found(field: str, value: object, found: str) -> None:
    answer = whole()
    assert answer.complete and difference(answer, whole()) is None
    setattr(answer.choices[0], field, value)
    assert found in (difference(answer, whole()) or "")


def test_an_answer_without_its_end_is_not_complete() -> None:
    cut, failed, unfinished = whole(), whole(), whole()
    cut.ended, failed.error, unfinished.choices[0].finish = False, "lost", None
    assert not (cut.complete or failed.complete or unfinished.complete)

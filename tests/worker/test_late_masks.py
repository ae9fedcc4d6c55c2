"""Sequences whose mask is late sit the step out: nobody waits, and the tokens are the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from driver import Driver, Running, greedy, new_sequence
from local import LocalWorker
from penstock.grammar import Matcher, masks
from penstock.rpc import shard_pb2 as pb
from test_grammars import make_grammar, with_grammar
from trees import PERSON, TREE

Fill = Callable[[Sequence[Matcher], Any, Any], masks.FillResult]


class Late:
    """Has masks of some steps be late, as if they took longer than those."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, is_late: Callable[[int, int], bool]
    ) -> None:
        self.steps = self.late = 0
        self._fill: Fill = masks.fill
        self._is_late = is_late  # of a step and a place among its rows with a grammar
        monkeypatch.setattr(masks, "fill", self)

    def __call__(
        self, matchers: Sequence[Matcher], rows: Any, left: Any = None
    ) -> masks.FillResult:
        filled = self._fill(matchers, rows, left)
        filled.late = [place for place in range(len(matchers)) if self._is_late(self.steps, place)]
        rows[filled.late] = -1
        self.steps += 1
        self.late += len(filled.late)
        return filled


def sequences() -> list[Running]:
    """Constrained sequences, some with logprobs, and one without a grammar."""
    asking = with_grammar(make_grammar("JSON_SCHEMA", PERSON, 40), 1)
    asking.sampling.top_logprobs = 2
    adjusted = with_grammar(make_grammar("JSON_SCHEMA", TREE, 40), 2)
    adjusted.sampling.penalties.CopyFrom(pb.Penalties(repetition=1.3, frequency=0.5, presence=0.4))
    held = with_grammar(make_grammar("JSON_SCHEMA", PERSON, 40), 3)
    held.sampling.min_tokens = 5
    held.sampling.stop_token_ids.extend([2, 3])
    return [asking, adjusted, held, greedy([1, 500, 600], 30, seed=4)]


def run(driver: Driver) -> tuple[list[list[int]], list[list[float]], int]:
    """Tokens and log-probabilities of each, and how many steps the last one had no token in."""
    running, missed = sequences(), 0
    for sequence in running:
        driver.enter(sequence)
    while not all(sequence.done for sequence in running):
        before, over = len(running[-1].tokens), running[-1].done
        reply = driver.step(running)
        missed += not over and len(running[-1].tokens) == before
        assert sum(reply.top_counts) == 2 * (running[0].slot in reply.slots)
    for sequence in running:
        driver.leave(sequence)
    assert not [sequence.error for sequence in running if sequence.error]
    return [s.tokens for s in running], [s.logprobs for s in running], missed


@pytest.mark.parametrize(
    "is_late",
    [lambda step, place: step % 3 != 2, lambda step, place: (step + place) % 2 == 0],
    ids=["all, two steps of three", "by turns"],
)
def test_tokens_are_the_same_when_masks_are_late(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, is_late: Callable[[int, int], bool]
) -> None:
    """From the first token on: those of a prompt's step are late, too. The other sequence has a
    token in every step."""
    expected = run(driver)
    late = Late(monkeypatch, is_late)
    tokens, logprobs, missed = run(driver)
    assert late.late > 20
    assert tokens == expected[0]
    assert missed == 0
    for found, wanted in zip(logprobs, expected[1], strict=True):
        assert found == pytest.approx(wanted, abs=1e-4)


def test_steps_sent_before_a_late_mask_rerun_the_same_token(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = make_grammar("JSON_SCHEMA", PERSON, 20)
    alone, ahead = with_grammar(wanted, 3), with_grammar(wanted, 3)
    driver.enter(alone)
    driver.finish([alone])
    Late(monkeypatch, lambda step, _: step in (0, 4, 5))
    driver.enter(ahead)
    driver.new.clear()
    block = driver.free.pop()
    driver.stream.send(
        finished=driver.finished,
        new=[new_sequence(ahead, 0, [block])],
        run_slots=[ahead.slot],
        run_tokens=[len(ahead.prompt)],
    )
    driver.finished = []
    for _ in range(11):
        driver.stream.send(run_slots=[ahead.slot], run_tokens=[1])
    replies = [driver.stream.receive() for _ in range(12)]
    assert [len(reply.slots) for reply in replies] == [0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1]
    found = [token for reply in replies for token in reply.token_ids]
    assert found == alone.tokens[:9]
    ahead.blocks = [block]
    driver.leave(ahead)


def test_step_proceeds_without_an_unfinished_mask(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real one, which a thread holds until the other sequence has ended."""
    sequence, other = (
        with_grammar(make_grammar("JSON_SCHEMA", TREE, 20), 5),
        greedy([1, 500, 600], 30),
    )
    expected = with_grammar(make_grammar("JSON_SCHEMA", TREE, 20), 5)
    driver.enter(expected)
    driver.finish([expected])
    let, begin = threading.Event(), masks.begin

    def begun_late(matchers: Sequence[Matcher], words: int) -> None:
        if let.is_set():
            begin(matchers, words)

    monkeypatch.setattr(masks, "begin", begun_late)
    for running in (sequence, other):
        driver.enter(running)
    while not other.done:
        driver.step([sequence, other])
        assert not sequence.tokens
    let.set()
    driver.finish([sequence, other])
    assert sequence.tokens == expected.tokens


@pytest.mark.parametrize("waits", [False, True])
def test_ranks_of_a_group_wait_for_all_masks(
    loaded: tuple[LocalWorker, pb.Loaded], driver: Driver, waits: bool
) -> None:
    """Each would find others late. So do models with states: test_states.py."""
    runner = loaded[0].runner
    asked: list[bool] = []
    sequence = with_grammar(make_grammar("JSON_SCHEMA", PERSON, 4), 1)

    class Asked(Late):
        def __call__(
            self, matchers: Sequence[Matcher], rows: Any, left: Any = None
        ) -> masks.FillResult:
            asked.append(left is None)
            return self._fill(matchers, rows, left)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner.grammar_masks, "waits", waits)
        Asked(patch, lambda *_: False)
        driver.enter(sequence)
        driver.finish([sequence])
    assert asked and set(asked) == {waits}

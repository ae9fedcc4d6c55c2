"""Stop tokens are possible from the token after min_tokens on, and not before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from checkpoints import checkpoint_maker, prompt
from driver import Driver, greedy
from local import LocalWorker

PROMPT = prompt(20)
WANTED = 8


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    path = checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))("llama31")
    worker = LocalWorker()
    driver = Driver([worker], worker.load(path, dtype="float64"))  # type: ignore[list-item]
    yield driver
    driver.stream.close()


@pytest.fixture(scope="module")
def free(driver: Driver) -> list[int]:
    """The tokens where none is a stop token. The first ones differ from each other."""
    tokens = tokens_with(driver)
    assert len(set(tokens[:5])) == 5
    return tokens


def tokens_with(driver: Driver, min_tokens: int = 0, stop: int | None = None) -> list[int]:
    stops = [] if stop is None else [stop]
    sequence = greedy(PROMPT, WANTED, min_tokens=min_tokens, stop_token_ids=stops)
    driver.enter(sequence)
    driver.finish([sequence])
    assert sequence.error is None
    return sequence.tokens


@pytest.mark.parametrize("generated", [0, 1, 4])
def test_stop_token_is_allowed_right_after_min_tokens(
    driver: Driver, free: list[int], generated: int
) -> None:
    """With min_tokens 0 it may be the first token."""
    assert tokens_with(driver, generated, free[generated]) == free


@pytest.mark.parametrize("generated", [0, 1, 4])
def test_last_of_min_tokens_is_not_a_stop_token(
    driver: Driver, free: list[int], generated: int
) -> None:
    stop = free[generated]
    tokens = tokens_with(driver, generated + 1, stop)
    assert tokens[:generated] == free[:generated]
    assert tokens[generated] != stop


@pytest.mark.parametrize("generated", [2, 3])
def test_tokens_generated_before_preemption_count_for_min_tokens(
    driver: Driver, free: list[int], generated: int
) -> None:
    """As after preemption: `generated` tokens enter with the prompt, min_tokens is 3."""
    stop = free[generated]
    sequence = greedy(PROMPT, generated + 1, min_tokens=3, stop_token_ids=[stop])
    sequence.tokens = free[:generated]
    driver.enter(sequence)
    driver.finish([sequence])
    assert (sequence.tokens[generated] == stop) == (generated == 3)


@pytest.mark.parametrize("min_tokens", [2, 3])
def test_a_fork_keeps_min_tokens(driver: Driver, free: list[int], min_tokens: int) -> None:
    stop = free[2]
    source = greedy(PROMPT, 3, min_tokens=min_tokens, stop_token_ids=[stop])
    driver.enter(source)
    driver.step([source])
    driver.step([source])
    (fork,) = driver.fork(source)
    driver.finish([source, fork])
    assert source.tokens == fork.tokens
    assert (fork.tokens[2] == stop) == (min_tokens == 2)

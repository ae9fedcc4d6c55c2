"""Sequences that run together in several ways."""

from __future__ import annotations

from checkpoints import prompt
from driver import Driver, Running, greedy


def in_three_ways(driver: Driver) -> list[list[int]]:
    """Greedy tokens of a prompt: alone, in chunks beside another sequence, and after a prefix
    hit."""
    alone, first, second = (greedy(prompt(60), 12) for _ in range(3))
    driver.enter(alone)
    driver.finish([alone])
    other = greedy(prompt(30, seed=1), 12)
    for sequence in (other, first):
        driver.enter(sequence)
    driver.finish([other, first], chunk=16)
    driver.enter_after(second, first)
    driver.finish([second])
    driver.stream.close()
    return [sequence.tokens for sequence in (alone, first, second)]


def beside_a_longer_prompt(driver: Driver) -> list[Running]:
    """A sequence that is preempted, its fork, and a longer prompt in chunks beside them."""
    short, long = greedy(prompt(30, seed=1), 90), greedy(prompt(200, seed=2), 12)
    driver.enter(short)
    driver.step([short])
    (fork,) = driver.fork(short)
    driver.enter(long)
    for _ in range(4):
        driver.step([short, fork, long], chunk=24)
    driver.leave(short)
    driver.step([fork, long], chunk=24)
    driver.enter(short)
    driver.finish([short, fork, long], chunk=24)
    driver.stream.close()
    return [short, fork, long]

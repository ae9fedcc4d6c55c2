"""What is asked of a server: jobs of one request or of a conversation, and when they arrive.

The random workload is that of `vllm bench serve`: prompts of random tokens, so that no two share
more than chance gives them. A prefix workload gives groups of prompts a beginning in common; a
conversation repeats everything that was said before each of its turns.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

Ids = list[int]


@dataclass(frozen=True)
class Turn:
    """One request: its prompt, as text or token ids, and the exact length of its answer."""

    prompt: str | Ids
    tokens: int
    fields: dict[str, Any] = field(default_factory=dict)  # more of its body


@dataclass(frozen=True)
class Job:
    """Requests that follow each other, the first of them at `at` seconds after the start."""

    turns: list[Turn]
    at: float = 0.0

    def line(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Shape:
    """Lengths in tokens; each varies evenly by the share `spread` around its value."""

    input: int
    output: int
    spread: float = 0.0


class Source:
    """Random prompts: token ids, or the text that a tokenizer makes of them."""

    def __init__(self, ids: range, decode: Callable[[Ids], str] | None, seed: int = 0) -> None:
        self.ids = ids
        self.decode = decode
        self.random = random.Random(seed)

    @classmethod
    def of_tokenizer(cls, path: str, seed: int = 0) -> Source:
        """Text, of the tokenizer.json at `path`; its special tokens are left out."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(path)
        size = tokenizer.get_vocab_size(with_added_tokens=False)
        # The first entries of a byte-level vocabulary are single bytes, which seldom make text.
        return cls(range(min(512, size // 2), size), tokenizer.decode, seed)

    def draw(self, length: int) -> Ids:
        return self.random.choices(self.ids, k=length)

    def prompt(self, ids: Ids) -> str | Ids:
        return self.decode(ids) if self.decode else ids

    def vary(self, length: int, spread: float) -> int:
        least, most = round(length * (1 - spread)), round(length * (1 + spread))
        return max(1, self.random.randint(least, most))


def random_jobs(source: Source, shape: Shape, count: int) -> list[Job]:
    """Prompts that have nothing in common."""
    return prefix_jobs(source, shape, count, prefix=0)


def prefix_jobs(
    source: Source, shape: Shape, count: int, prefix: int, groups: int = 1
) -> list[Job]:
    """Prompts of `prefix` tokens that a group has in common, then `shape.input` of their own."""
    begins = [source.draw(prefix) for _ in range(groups)]
    jobs = []
    for index in range(count):
        own = source.draw(source.vary(shape.input, shape.spread))
        prompt = source.prompt(begins[index % groups] + own)
        jobs.append(Job([Turn(prompt, source.vary(shape.output, shape.spread))]))
    return jobs


def with_fields(jobs: list[Job], fields: dict[str, Any]) -> list[Job]:
    """The jobs with more fields in the body of every request."""
    return [
        replace(job, turns=[replace(turn, fields=turn.fields | fields) for turn in job.turns])
        for job in jobs
    ]


def conversations(source: Source, shape: Shape, count: int, turns: int) -> list[Job]:
    """Jobs of `turns` requests, each `shape.input` tokens after all that was said before."""
    if source.decode is None:
        raise ValueError("a conversation needs --tokenizer: only text can continue an answer")
    single = [random_jobs(source, shape, turns) for _ in range(count)]
    return [Job([job.turns[0] for job in jobs]) for jobs in single]


def arriving(jobs: list[Job], rate: float, seed: int = 0) -> list[Job]:
    """The jobs as a Poisson process of `rate` arrivals per second."""
    clock, now, timed = random.Random(seed), 0.0, []
    for job in jobs:
        timed.append(replace(job, at=now))
        now += clock.expovariate(rate)
    return timed

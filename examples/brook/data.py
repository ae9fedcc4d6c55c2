"""Batches: samples drawn from the mixture, tokenized, and packed into rows of the full context."""

import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from .kinds import SHORT, distant
from .kinds.talk import PREFIXES, SYSTEM_PROMPTS
from .sample import Sample, Turn, segments

CONTEXT = 2048
# Share of the tokens in samples whose answer lies far back.
DISTANT_SHARE = 0.38
# What the loss ignores.
IGNORED = -1

Batch = tuple[NDArray[np.int16], NDArray[np.int16]]


@cache
def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer, once per process."""
    return Tokenizer.from_file(str(path))


def _draw(rng: Random) -> Sample:
    makers, weights = zip(*SHORT, strict=True)
    return rng.choices(makers, weights)[0](rng, False)


def _starts_plain(sample: Sample) -> bool:
    return bool(sample.turns) and not sample.tools and sample.turns[0].role == "user"


def draw(rng: Random) -> Sample:
    """A short sample; at times after others in one chat, at times with a system turn."""
    sample = _draw(rng)
    if not _starts_plain(sample):
        return sample
    while rng.random() < 0.15:
        before = _draw(rng)
        if _starts_plain(before):
            sample = replace(sample, turns=(*before.turns, *sample.turns))
    if rng.random() < 0.04:
        last = sample.turns[-2:]
        return Sample("plain", text=f"Question: {last[0].content}\nAnswer: {last[1].content}")
    if rng.random() < 0.06:
        first = replace(sample.turns[0], content=rng.choice(PREFIXES) + sample.turns[0].content)
        sample = replace(sample, turns=(first, *sample.turns[1:]))
    if rng.random() < 0.25:
        system = Turn("system", rng.choice(SYSTEM_PROMPTS))
        sample = replace(sample, turns=(system, *sample.turns))
    return sample


Document = tuple[list[int], list[bool]]


def encode(tokenizer: Tokenizer, sample: Sample) -> Document:
    """Token ids, and for each whether the loss counts it."""
    pieces = segments(sample)
    encoded = tokenizer.encode_batch_fast([text for text, _ in pieces], add_special_tokens=False)
    ids: list[int] = []
    counted: list[bool] = []
    for (_, trained), one in zip(pieces, encoded, strict=True):
        ids += one.ids
        counted += [trained] * len(one.ids)
    return ids, counted


def _roughly(text: str) -> int:
    """About how many tokens a text has: far cheaper than to count them."""
    return len(text) // 4 + 1


def _documents(rng: Random, tokenizer: Tokenizer, tokens: int) -> list[Document]:
    found: list[Document] = []
    for share, make in (
        (DISTANT_SHARE, lambda: distant.sample(rng, CONTEXT - 60, _roughly)),
        (1 - DISTANT_SHARE, lambda: draw(rng)),
    ):
        room = int(tokens * share)
        while room > 0:
            document = encode(tokenizer, make())
            if len(document[0]) <= CONTEXT:
                found.append(document)
                room -= len(document[0])
    return found


def _pack(documents: list[Document], rows: int, rng: Random) -> Batch:
    """Best fit, longest first; what does not fit is dropped."""
    room = np.full(rows, CONTEXT)
    placed: list[list[Document]] = [[] for _ in range(rows)]
    for document in sorted(documents, key=lambda one: -len(one[0])):
        fits = np.where(room >= len(document[0]), room, CONTEXT + 1)
        row = int(fits.argmin())
        if fits[row] <= CONTEXT:
            placed[row].append(document)
            room[row] -= len(document[0])
    ids = np.zeros((rows, CONTEXT), np.int16)
    labels = np.full((rows, CONTEXT), IGNORED, np.int16)
    for row, chosen in enumerate(placed):
        rng.shuffle(chosen)
        flat = np.array([token for one, _ in chosen for token in one], np.int16)
        counted = np.array([flag for _, one in chosen for flag in one], bool)
        ids[row, : len(flat)] = flat
        labels[row, : len(flat) - 1] = np.where(counted[1:], flat[1:], IGNORED)
    return ids, labels


def make_batch(path: Path, seed: int, rows: int, step: int) -> Batch:
    """Batch number `step`: ids and labels, [rows, CONTEXT]; depends on the arguments alone."""
    rng = Random(zlib.crc32(f"{seed} {step}".encode()))
    documents = _documents(rng, load_tokenizer(path), rows * CONTEXT)
    return _pack(documents, rows, rng)


def batches(path: Path, seed: int, rows: int, steps: int, processes: int) -> Iterator[Batch]:
    """All batches in order, made ahead of time by `processes` processes."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(partial(make_batch, path, seed, rows), range(steps))

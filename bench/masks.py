"""What the masks of guided sequences take on the host, step by step, without a model.

    PYTHONPATH=python:kernels python bench/masks.py [--backends outlines llguidance]
        [--sequences 1 32] [--vocabulary 128000 | --tokenizer tokenizer.json]

Sequences of one schema (those of bench/features.py) take random tokens that their masks allow,
until --tokens are spent. A step is timed from where the host has its tokens to where its masks are
ready to be copied, as the worker does it (`penstock.worker.grammar_masks`). "cold": the first
answers of a guide, all at the same place; "warm": answers after those; "apart": warm, and each
sequence a few tokens further than the one before it.

"kept" is how long another thread, which wakes every 50 us as the thread that launches steps might,
was kept from running beyond that: by the interpreter's lock, or because cores were busy.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from features import document
from penstock.grammar import EndConditions, GrammarKind, GrammarSpec, Matcher, masks
from penstock.grammar.cache import GrammarCache
from penstock.worker.grammar_masks import GrammarMasks
from penstock.worker.state import Work
from vocabulary import write_model

SCHEMAS = {
    "outlines": document()["guided_json"],
    "llguidance": document(minimum=0, maximum=120)["guided_json"],
}
APART = 6  # tokens between neighbours
NAP = 50e-6  # seconds


class Watch:
    """A thread that wakes often, and notes by how much too late; the worst of each step."""

    def __init__(self) -> None:
        self.late = 0.0
        self.over = False
        self.thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watch:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over = True
        self.thread.join()

    def _watch(self) -> None:
        while not self.over:
            began = time.perf_counter()
            time.sleep(NAP)
            self.late = max(self.late, time.perf_counter() - began - NAP)


def work_of(matchers: list[Matcher]) -> Work:
    """A decode step of these sequences, one in each slot."""
    count = len(matchers)
    slots = np.arange(count, dtype=np.int32)
    ones = np.ones(count, np.int32)
    return Work(
        slots=slots,
        starts=ones,
        counts=ones,
        decodes=count,
        yields=np.ones(count, np.bool_),
        positions=ones,
        run_order=np.arange(count),
        constrained=list(enumerate(matchers)),
    )


class Answers:
    """Guided sequences that run to their last token."""

    def __init__(self, grammar_cache: GrammarCache, wanted: GrammarSpec, tokens: int) -> None:
        self.grammar_cache, self.wanted, self.tokens = grammar_cache, wanted, tokens
        self.vocab = grammar_cache.vocabulary().size
        self.ends = EndConditions((self.vocab - 1,), tokens)

    def run(self, count: int, seed: int, apart: int = 0) -> tuple[list[float], list[float]]:
        """Milliseconds of each step, and the worst lateness of another thread in it. Sequence i
        is i * `apart` tokens ahead; the steps end with the first sequence."""
        draw = np.random.default_rng(seed)
        grammar_masks = GrammarMasks(self.vocab, torch.device("cpu"))
        samples = np.arange(count)
        ids = torch.zeros(count, dtype=torch.int64)
        host = SimpleNamespace(ids=ids, end=None)
        matchers = [self.grammar_cache.matcher(self.wanted, self.ends, []) for _ in range(count)]
        for place, matcher in enumerate(matchers):
            row = torch.zeros((1, -(-self.vocab // 32)), dtype=torch.int32)
            for _ in range(place * apart):
                masks.fill([matcher], row)
                matcher.advance(self._drawn(row[0].numpy(), draw))
        took, late = [], []
        with Watch() as watch:
            for _ in range(self.tokens - (count - 1) * apart):
                work = work_of(matchers)
                time.sleep(0.001)  # the other thread naps again
                watch.late = 0.0
                began = time.perf_counter()
                filled = grammar_masks.masks(work, samples)
                took.append(1e3 * (time.perf_counter() - began))
                late.append(1e3 * watch.late)
                if work.refused:
                    raise RuntimeError(f"a guide cannot go on: {work.refused}")
                assert filled is not None
                ids[:] = torch.tensor([self._drawn(row.numpy(), draw) for row in filled[1]])
                grammar_masks.expect(work, samples, host)
        return took, late

    def _drawn(self, row: np.ndarray, draw: np.random.Generator) -> int:
        bits = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        return int(draw.choice(bits)) if len(bits) else self.vocab - 1


def table_row(name: str, count: int, case: str, times: tuple[list[float], list[float]]) -> str:
    """Markdown."""
    took, late = np.array(times[0]), np.array(times[1])
    cells = [took.mean(), np.median(took), np.percentile(took, 99), took.max()]
    cells += [late.mean(), late.max()]
    return f"| {name} | {count} | {case} | " + " | ".join(f"{x:.2f}" for x in cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("--backends", nargs="+", choices=[*SCHEMAS], default=[*SCHEMAS])
    option("--sequences", nargs="+", type=int, default=[1, 32])
    option("--tokens", type=int, default=256, help="of an answer")
    option("--vocabulary", type=int, default=128_000, help="entries, of a tokenizer made here")
    option("--tokenizer", type=Path, help="tokenizer.json of a real model instead")
    option("--size", type=int, default=128_256, help="rows of that model's vocabulary")
    options = parser.parse_args()
    size = options.size if options.tokenizer else options.vocabulary
    titles = ["backend", "sequences", "", "mean ms", "median", "p99", "worst", "kept ms", "worst"]
    print("| " + " | ".join(titles) + " |", "|" + "---|" * len(titles), sep="\n")
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), options.vocabulary)
        tokenizer = options.tokenizer or Path(folder) / "tokenizer.json"
        for name in options.backends:
            wanted = GrammarSpec(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMAS[name]), True)
            for count in options.sequences:
                grammar_cache = GrammarCache(tokenizer, size)
                answers = Answers(grammar_cache, wanted, options.tokens)
                cases = {"cold": (0, 0), "warm": (1, 0)}
                cases |= {"apart": (2, APART)} if count > 1 else {}
                for case, (seed, apart) in cases.items():
                    times = answers.run(count, seed, apart)
                    print(table_row(name, count, case, times), flush=True)
                grammar_cache.close()


if __name__ == "__main__":
    main()

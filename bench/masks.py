"""How long the masks of guided sequences take on the host, step by step, without a model.

    PYTHONPATH=python:kernels python bench/masks.py [--sequences 32] [--vocabulary 128000]

Sequences of one schema (that of bench/features.py) take random tokens that their masks allow, until
--tokens are spent; no mask is known before. One thread fills them; a worker has up to four, and the
forward pass meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from features import document
from penstock.guidance import Ends, Kind, Wanted
from penstock.guidance.library import Library
from vocabulary import write_model

PARTS = 8  # of an answer, told apart


def step_times(cursors: list, words: int, tokens: int, end: int) -> list[float]:
    """Milliseconds to fill the masks of all sequences, of each step."""
    draw = np.random.default_rng(0)
    rows = np.zeros((len(cursors), words), np.int32)
    times = []
    for _ in range(tokens):
        began = time.perf_counter()
        for row, cursor in zip(rows, cursors, strict=True):
            cursor.fill(row)
        times.append(1e3 * (time.perf_counter() - began))
        for row, cursor in zip(rows, cursors, strict=True):
            bits = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            cursor.advance(int(draw.choice(bits)) if len(bits) else end)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, default=128_000)
    parser.add_argument("--tokens", type=int, default=256, help="of an answer")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), options.vocabulary)
        library = Library(Path(folder) / "tokenizer.json", options.vocabulary)
        wanted = Wanted(Kind.JSON_SCHEMA, json.dumps(document()["guided_json"]), True)
        end = options.vocabulary - 1
        ends = Ends((end,), options.tokens)
        cursors = [library.cursor(wanted, ends, []) for _ in range(options.sequences)]
        words = -(-options.vocabulary // 32)
        times = step_times(cursors, words, options.tokens, end)
        library.close()
    print(f"ms a step: mean {statistics.mean(times):.2f}, median {statistics.median(times):.2f}")
    for part in np.array_split(np.array(times), PARTS):
        print(f"  {len(part)} steps: mean {part.mean():.2f}, most {part.max():.1f}")


if __name__ == "__main__":
    main()

"""Compiles the kernels of the steps to come, many at once and beside everything else.

A kernel's variants depend on a step's shape, and each takes up to a second to compile when Triton's
cache has none. The largest step comes first; the worker is ready when that one ran. What smaller
steps launch goes on compiling: a step that needs a kernel which is not there yet waits for it.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

from penstock_kernels.building import building

from penstock.worker.runner import Runner
from penstock.worker.shape import Shape, padded_shape, tensors
from penstock.worker.state import Limits

THREADS = 16  # at most; a compilation is one core's work
DECODES = (1, 2, 4, 8, 16, 32, 64, 256)  # sequences; where plans for few rows change
CHUNK_TOKENS = (16, 32, 64, 128, 512)  # of a prompt alone, and beside decodes


class Rehearsal:
    """The threads that compile; they end by themselves when nothing is left."""

    def __init__(self) -> None:
        cores = len(os.sched_getaffinity(0))
        self.pool = ThreadPoolExecutor(min(THREADS, cores), thread_name_prefix="compile")

    def building(self) -> AbstractContextManager[None]:
        """Inside, kernels are compiled instead of launched."""
        return building(self.pool)

    def play(self, runner: Runner) -> None:
        """Goes through steps of all kinds; every rank of a group goes through the same."""
        buffer = runner.inputs
        if buffer is not None:
            with self.building():
                for shape in _shapes(runner.state.limits):
                    buffer.zero_()
                    views = tensors(shape, buffer)
                    # Of no sequence: the row of padding.
                    for name in ("id_slot", "sample_slot", "decode_slot", "chunk_slot"):
                        views[name].fill_(runner.state.limits.slots)
                    runner.choose(runner.forward(shape, views), views)
            buffer.zero_()
        self.pool.shutdown(wait=False)


def _shapes(limits: Limits) -> list[Shape]:
    wanted = [(0, 1, CHUNK_TOKENS[0])]
    wanted += [(count, 0, 0) for count in DECODES]
    wanted += [(0, 1, tokens) for tokens in CHUNK_TOKENS[1:]]
    wanted += [(8, 1, tokens) for tokens in CHUNK_TOKENS]
    found = dict.fromkeys(padded_shape(*sizes) for sizes in wanted)
    return [
        shape
        for shape in found
        if shape and shape.tokens <= limits.step_tokens and shape.samples <= limits.slots
    ]

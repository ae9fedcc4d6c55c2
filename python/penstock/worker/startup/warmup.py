"""Compiles the kernels of later steps concurrently, and captures the steps as graphs.

The variants of a kernel depend on the step's shape, and each takes up to a second to compile if it
is not in Triton's cache. The largest step is compiled first; when it has run, the worker reports
ready. The kernels of smaller steps compile in the background: a step waits for a kernel that is not
ready. Shapes are captured while no step is waiting or running, because a capture delays running
streams by tens of milliseconds, and all captures would delay the first answer by seconds. The ranks
of a tensor-parallel group capture before they report ready, but only steps of few prompts.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import torch
from penstock_kernels.compile_ahead import compile_ahead

from penstock.cache import KvGeometry
from penstock.models import Model, fewer_layers
from penstock.worker import batch
from penstock.worker.batch import Shape, padded_shape
from penstock.worker.protocol.sampling_params import SamplerVariant
from penstock.worker.protocol.settings import Limits
from penstock.worker.run.graphs import Graphs
from penstock.worker.run.runner import Runner
from penstock.worker.startup.compilers import Compilers
from penstock.worker.startup.memory import (
    Capacity,
    decoding_context,
    exercise_layers,
    prompts_context,
)

THREADS = 16  # at most; a compilation is one core's work
# Where kernels change with a step's size: sequences that decode, and tokens of a step with prompts.
DECODES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (16, 32, 64, 128, 192, 256, 384, 512, 1024, 2048)
# Decodes beside prompts, one for each size of MIXED_DECODES; the first ones have all kernels.
BESIDE = (0, *(decodes + 1 for decodes in batch.MIXED_DECODES[:-1]))
COMPILED_BESIDE = BESIDE[:3]
# A number of prompts for each of batch.PROMPTS, the most likely first.
CHUNKS = (1, *(chunks + 1 for chunks, _ in reversed(batch.PROMPTS[:-1])))


class Warmup:
    """The threads that compile, or let `compilers` do it; they end when all is compiled."""

    def __init__(self, ranks: int = 1, compilers: Compilers | None = None) -> None:
        cores = len(os.sched_getaffinity(0)) // ranks
        threads = max(min(THREADS, cores), 1)
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="compile")
        self.compilers = compilers

    def __enter__(self) -> Warmup:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Does not wait. After a failure, starts no further compilation."""
        self.pool.shutdown(wait=False, cancel_futures=kind is not None)
        if self.compilers is not None:
            done = (self.pool, self.compilers)
            threading.Thread(target=_close, args=done, name="warmup", daemon=True).start()

    def compile_ahead(self) -> AbstractContextManager[None]:
        """Inside this context, kernels are compiled instead of launched."""
        compilers = self.compilers
        return compile_ahead(self.pool, compilers.compile if compilers is not None else None)

    def begin(
        self, model: Model, capacity: Capacity, geometry: KvGeometry, device: torch.device
    ) -> None:
        """Compiles the layers of small steps, over scratch memory. Attention kernels take longest,
        so this starts before the size of KV memory is known."""
        most = min(capacity.slots, capacity.step_tokens)
        prompt = min(TOKENS[0], capacity.step_tokens)
        exercise_layers(model, prompts_context(capacity, geometry, device, prompt))
        for count in (count for count in DECODES if count <= most):
            exercise_layers(model, decoding_context(capacity, geometry, device, count))

    def run(self, runner: Runner) -> None:
        """Compiles steps of all kinds; every rank of a group runs the same ones."""
        # Steps that are not padded take kernels that need no warm-up.
        if runner.packer.pad and runner.graphs is not None:
            with self.compile_ahead(), fewer_layers(runner.rank_model.model):
                _compile(runner, runner.graphs.logits)
            limits = runner.state.limits
            if runner.rank_model.group.size == 1:
                runner.spare_work = _captures(runner, runner.graphs, captured_shapes(limits))
            else:
                # Ranks meet within a step, so all must capture it before one runs it.
                captures = _captures(runner, runner.graphs, captured_shapes(limits, CHUNKS[:1]))
                deque(captures, maxlen=0)


def _close(pool: ThreadPoolExecutor, compilers: Compilers) -> None:
    """Closes the compiler processes when all is compiled."""
    pool.shutdown()
    compilers.close()


def _captures(runner: Runner, graphs: Graphs, shapes: list[Shape]) -> Iterator[None]:
    """Captures one shape at a time."""
    for shape in shapes:
        # If a smaller shape had too little memory, skip this one.
        if shape not in graphs.captured and shape.tokens <= graphs.largest:
            graphs.make(shape, runner.warmup_stages(shape))
            yield


def _compile(runner: Runner, logits: torch.Tensor) -> None:
    """Compiles the steps whose kernels differ; those for rare requests come last."""
    compiled = _compiled(runner.state.limits)
    for shape in compiled:
        stages = runner.warmup_stages(shape)
        stages.samplers[SamplerVariant.PLAIN](stages.forward())
        runner.last_token.zero_()  # what was to be written there was never chosen
    for shape in compiled:
        for choose in runner.warmup_stages(shape).samplers[SamplerVariant.PLAIN + 1 :]:
            choose(logits[: shape.samples])
            runner.last_token.zero_()
    for shape in compiled[:1]:
        runner.warmup_extras(shape)


def _compiled(limits: Limits) -> list[Shape]:
    """Returns the shapes to compile. Those of the first request come first: a short prompt, one
    decode."""
    decodes = [(count, 0, 0) for count in DECODES]
    prompts = _with_prompts(CHUNKS[:1], TOKENS, COMPILED_BESIDE)
    return _padded([(0, 1, TOKENS[0]), *decodes, *prompts], limits)


def captured_shapes(limits: Limits, chunks: Iterable[int] = CHUNKS) -> list[Shape]:
    """Returns the shapes to capture in advance, the most likely first: all padded ones of steps
    that have no prompts, or one of these numbers of them."""
    decodes = [(count, 0, 0) for count in range(1, limits.slots + 1)]
    return _padded(decodes + _with_prompts(chunks, batch.TOKENS, BESIDE), limits)


def _with_prompts(
    chunks: Iterable[int], sizes: Iterable[int], beside: Iterable[int]
) -> list[tuple[int, int, int]]:
    """Steps of these sizes, of all combinations that are possible."""
    steps = itertools.product(chunks, sizes, beside)
    return [(d, count, tokens - d) for count, tokens, d in steps if tokens >= d + count]


def _padded(sizes_of_steps: list[tuple[int, int, int]], limits: Limits) -> list[Shape]:
    """Returns the distinct padded shapes of these steps (decodes, chunks, tokens of chunks)."""
    fitting = [sizes for sizes in sizes_of_steps if sizes[0] + sizes[1] <= limits.slots]
    found = dict.fromkeys(padded_shape(*sizes, longest=1) for sizes in fitting)
    return [shape for shape in found if shape and shape.tokens <= limits.step_tokens]

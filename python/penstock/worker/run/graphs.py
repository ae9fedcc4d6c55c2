"""Graphs of small steps: the host launches one graph instead of every kernel.

On a GPU they are CUDA graphs, on a CPU tapes (`penstock.cpu.tape`).

A step is two stages, forward to logits and choice of tokens, each a graph of its own, so that what
changes logits in between (masks) stays outside. The rehearsal captures all shapes that it can
foresee, while the device has nothing to do; else a shape is captured when a step brings it for the
second time: the first, launched kernel by kernel, has compiled and warmed what the capture needs.
Choices that few steps need are graphs of their own too, captured when they are first needed after
that. All ranks of a group rehearse and step alike, so all of them capture the same shapes at the
same places.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from penstock_kernels.op import reason
from torch import Tensor

from penstock.worker.batch import Shape

log = logging.getLogger("penstock.worker")

T = TypeVar("T")
Tokens = tuple[Tensor, Tensor]  # ids and their log-probabilities, [R] each
Sampler = Callable[[Tensor], Tokens]
SIGHTINGS = 2  # of a shape before it is captured
MOST_GRAPHS = 256  # each holds a few MB
MOST_TOKENS = 1 << 20  # no limit but memory's
TAPED_DECODES = 16
TAPE_BYTES = 256 << 20  # of all shapes: tapes keep what kernels write in between


@dataclass(frozen=True)
class Stages:
    """The two halves of a step that yields tokens."""

    forward: Callable[[], Tensor]  # -> logits [R, vocab]
    samplers: tuple[
        Sampler, ...
    ]  # by SamplerVariant: logits -> tokens, which become their slots' last


class Capture(Protocol):
    """Makes graphs of one kind."""

    all_samplers: bool  # whether they hold every choice, or the plain one alone

    def takes(self, shape: Shape) -> bool:
        """Whether steps of this shape come again, and are small enough to gain from a graph."""

    def __call__(self, launch: Callable[[], T]) -> Callable[[], T]:
        """What does the same as `launch`, sooner; its results are the same tensors each time.

        Nothing of `launch` happens until then. Raises RuntimeError if it cannot be.
        """


class DeviceCapture:
    """Captures on a stream of its own. The graphs share memory: they never run side by side."""

    all_samplers = True

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()

    def takes(self, shape: Shape) -> bool:
        """Steps that were padded to a shape that comes again."""
        return shape.padded

    def __call__(self, launch: Callable[[], T]) -> Callable[[], T]:
        """Memory that it lacks is a RuntimeError."""
        graph = torch.cuda.CUDAGraph()
        # Work that was queued may still free memory, which a capture in progress could not reuse.
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            # Relaxed: kernels are loaded on the way, and other threads wait for events meanwhile.
            graph.capture_begin(pool=self.pool, capture_error_mode="relaxed")
            try:
                result = launch()
            finally:
                graph.capture_end()

        def replay() -> T:
            graph.replay()
            return result

        return replay


class TapeCapture:
    """Records the CPU backend's kernels, plain sampling included."""

    all_samplers = False

    def __init__(self) -> None:
        # Imported here: a GPU's worker needs no extension.
        from penstock.cpu.tape import Recorder

        self.recorder = Recorder(TAPE_BYTES)

    def takes(self, shape: Shape) -> bool:
        """A few decodes. Of more, the kernels take longer than what lies between them."""
        return shape.samples_every_row and shape.decodes <= TAPED_DECODES

    def __call__(self, launch: Callable[[], T]) -> Callable[[], T]:
        """`launch` itself where a tape cannot hold it."""
        return self.recorder.record(launch)


class Graphs:
    """Captured stages by shape. Used by the launch thread only."""

    def __init__(self, capture: Capture, logits: Tensor) -> None:
        self.capture = capture
        self.logits = logits  # [rows, vocab]: of all shapes in turn, or each would need its own
        self.largest = MOST_TOKENS  # of a step to be captured
        self.sightings: Counter[Shape] = Counter()
        self.captured: dict[Shape, Stages] = {}

    def lookup(self, shape: Shape, stages: Stages) -> Stages:
        """`stages` as graphs, or as they are: while the shape is new or where graphs cannot be."""
        found = self.captured.get(shape)
        if found is not None:
            return found
        full = len(self.captured) >= MOST_GRAPHS
        if full or not self.capture.takes(shape) or shape.tokens > self.largest:
            return stages
        self.sightings[shape] += 1
        if self.sightings[shape] < SIGHTINGS:
            return stages
        return self.make(shape, stages)

    def make(self, shape: Shape, stages: Stages) -> Stages:
        """Captures a shape whose kernels have run before; `stages` as they are if that fails, and
        from then on those of all shapes as large."""
        try:
            self.captured[shape] = found = self._captured(stages, shape.samples)
        except RuntimeError as error:  # out of memory included
            self.largest = shape.tokens - 1
            log.warning(
                "no CUDA graph for steps of %d tokens, so steps of that many or more are launched "
                "kernel by kernel, which slows small models most: %s",
                shape.tokens,
                reason(error),
            )
            return stages
        return found

    def _captured(self, stages: Stages, rows: int) -> Stages:
        logits = self.logits[:rows]
        forward = self.capture(lambda: logits.copy_(stages.forward()))
        plain, *others = stages.samplers
        choose = self.capture(lambda: plain(logits))
        if self.capture.all_samplers:
            others = [self._captured_later(other, logits) for other in others]
        return Stages(forward, (lambda _: choose(), *others))

    def _captured_later(self, choose: Sampler, logits: Tensor) -> Sampler:
        """`choose` as it is at its first call, which warms what a capture needs, then a graph."""
        made: list[Sampler] = []

        def launch(given: Tensor) -> Tokens:
            if len(made) < SIGHTINGS - 1:
                made.append(choose)
            elif len(made) < SIGHTINGS:
                made.append(self._captured_sampler(choose, logits))
            return made[-1](given)

        return launch

    def _captured_sampler(self, choose: Sampler, logits: Tensor) -> Sampler:
        try:
            graph = self.capture(lambda: choose(logits))
        except RuntimeError as error:  # out of memory included
            log.warning("no CUDA graph of a choice of tokens: %s", reason(error))
            return choose
        return lambda _: graph()

"""Graphs of small steps: the host launches one graph instead of every kernel.

On a GPU they are CUDA graphs, on a CPU tapes (`penstock.cpu.tape`).

A step has two stages, the forward pass to the logits and the sampler. Each is a separate graph, so
that grammar masks can change the logits in between. The warm-up captures the expected shapes while
the device is idle. Another shape is captured when a step has it for the second time: the first such
step is launched kernel by kernel, which compiles everything that the capture needs. Sampler
variants that few steps need have their own graphs, captured at their second use. All ranks of a
group run the same warm-up and the same steps, so they capture the same shapes in the same order.
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
    """Captures graphs of one kind."""

    all_samplers: bool  # whether they hold every choice, or the plain one alone

    def takes(self, shape: Shape) -> bool:
        """Whether this shape recurs and is small enough to gain from a graph."""

    def __call__(self, launch: Callable[[], T]) -> Callable[[], T]:
        """Returns a faster replacement for `launch`; it returns the same tensors in each call.

        Does not execute `launch`. Raises RuntimeError if the capture fails.
        """


class DeviceCapture:
    """Captures on a separate stream. The graphs share memory: they never run concurrently."""

    all_samplers = True

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()

    def takes(self, shape: Shape) -> bool:
        """Whether the step was padded to one of the recurring shapes."""
        return shape.padded

    def __call__(self, launch: Callable[[], T]) -> Callable[[], T]:
        """Raises RuntimeError also if memory is insufficient."""
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
        """Whether the step has few decodes. With more, the kernels hide the overhead between
        them."""
        return shape.samples_every_row and shape.decodes <= TAPED_DECODES

    def __call__(self, launch: Callable[[], T]) -> Callable[[], T]:
        """Returns `launch` itself if a tape cannot record it."""
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
        """Returns graphs of `stages`, or `stages` if the shape is new or cannot be captured."""
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
        """Captures a shape whose kernels have run before. If that fails, returns `stages`, and
        captures no shape of this size or larger any more."""
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
        """Calls `choose` at first, which compiles what a capture needs, and a graph of it
        afterwards."""
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

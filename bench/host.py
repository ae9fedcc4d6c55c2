"""What a step of decodes costs a worker's host, stage by stage.

    python bench/run.py host [--sequences 1 32 256]   # no device
    python bench/run.py host --shape 1b               # on a GPU

Without a shape, the worker packs steps of brook on the CPU as a GPU's does, but graphs do nothing.
While these stages take less than the device's step, the device need not wait for them: parsing,
launching (fold to outputs) and replying run on three threads that share one interpreter.
Microseconds; the medians of the round in which a step took least, since other programs only add.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import torch
from penstock.rpc import shard_pb2 as pb
from penstock.worker.batch import Shape
from penstock.worker.protocol.messages import from_outcome, to_settings, to_step
from penstock.worker.run.graphs import Graphs, Stages
from penstock.worker.run.runner import Runner
from penstock.worker.startup.loader import load

T = TypeVar("T")
BROOK = Path(__file__).resolve().parents[1] / "python/penstock/brook"
PROMPT, BLOCKS = 16, 128  # tokens, and blocks of 16 tokens
STEPS, ROUNDS = 100, 15  # fewer tokens in all than the blocks hold
STAGES = ("parse", "fold", "pack", "inputs", "forward", "choose", "outputs", "reply")


class Nothing:
    """Captures by running once, replays by doing nothing."""

    all_samplers = True

    def takes(self, shape: Shape) -> bool:
        """Whatever is padded, as on a GPU."""
        return shape.padded

    def __call__(self, launch: Callable[[], T]) -> Callable[[], T]:
        """The results that `launch` had."""
        result = launch()
        return lambda: result


def brook() -> Runner:
    """On the CPU, but packing as a GPU's worker does."""
    request = pb.LoadRequest(
        model_path=str(BROOK),
        device="cpu",
        dtype="float32",
        max_slots=256,
        max_step_tokens=4096,
        kv_memory_bytes=256 << 20,
        threads=1,
    )
    made, loaded = load(to_settings(request), lambda *_: None)
    made.packer.pad = True
    made.graphs = Graphs(Nothing(), torch.empty(512, loaded.limits.vocab))
    return made


class Clock:
    """Notes when stages end."""

    def __init__(self) -> None:
        self.ends: dict[str, float] = {}

    def after(self, stage: str, function: Callable[..., T]) -> Callable[..., T]:
        """The function, at whose end the stage ends."""

        def run(*arguments: Any) -> T:
            result = function(*arguments)
            self.ends[stage] = perf_counter()
            return result

        return run

    @contextmanager
    def watching(self, runner: Runner) -> Iterator[None]:
        """Inside, the stages of a launch are noted."""
        state, packer, graphs = runner.state, runner.packer, runner.graphs
        assert graphs is not None
        fold, pack, lookup = state.fold, packer.pack, graphs.lookup

        def noted(shape: Shape, stages: Stages) -> Stages:
            found = lookup(shape, stages)
            self.ends["inputs"] = perf_counter()
            plain, *others = found.samplers
            samplers = self.after("choose", plain), *others
            return Stages(self.after("forward", found.forward), samplers)

        changed: list[tuple[Any, str, Any]] = [
            (state, "fold", self.after("fold", fold)),
            (packer, "pack", self.after("pack", pack)),
            (graphs, "lookup", noted),
        ]
        for owner, name, function in changed:
            setattr(owner, name, function)
        try:
            yield
        finally:
            for owner, name, _ in changed:
                delattr(owner, name)


def timed_step(runner: Runner, clock: Clock, request: bytes) -> list[float]:
    """Microseconds of each stage."""
    began = perf_counter()
    step = to_step(pb.StepRequest.FromString(request), None)  # type: ignore[arg-type]
    clock.ends["parse"] = perf_counter()
    pending = runner.launch(step)
    clock.ends["outputs"] = perf_counter()
    if pending.host.end is not None:
        pending.host.end.synchronize()
    done = perf_counter()
    outcome = pending.wait()
    assert not outcome.faults, outcome.faults[0]
    from_outcome(outcome).SerializeToString()
    replied = perf_counter() - done
    ends = [began, *(clock.ends[stage] for stage in STAGES[:-1])]
    return [1e6 * (b - a) for a, b in pairwise(ends)] + [1e6 * replied]


def measure(runner: Runner, sequences: int, epoch: int) -> list[float]:
    """Microseconds of each stage of a step of `sequences` decodes."""
    numbers, slots, clock = count(), list(range(sequences)), Clock()

    def request(tokens: int, runs: list[int], new: list[pb.NewSequence]) -> bytes:
        step = pb.StepRequest(epoch=epoch, step=next(numbers), new=new, run_slots=runs)
        step.run_tokens.extend([tokens] * len(runs))
        return step.SerializeToString()

    def sequence(slot: int) -> pb.NewSequence:
        return pb.NewSequence(
            slot=slot,
            token_ids=range(1, PROMPT + 1),
            tables=[pb.BlockTable(blocks=range(BLOCKS))],  # of all: nobody reads them
            sampling=pb.Sampling(top_p=1),
        )

    for slot in slots:
        entering = pb.StepRequest.FromString(request(PROMPT, [slot], [sequence(slot)]))
        runner.launch(to_step(entering, None)).wait()  # type: ignore[arg-type]
    with clock.watching(runner):
        for _ in range(3):
            timed_step(runner, clock, request(1, slots, []))
        rounds = [
            [timed_step(runner, clock, request(1, slots, [])) for _ in range(STEPS)]
            for _ in range(ROUNDS)
        ]
    medians = [[statistics.median(stage) for stage in zip(*r, strict=True)] for r in rounds]
    return min(medians, key=sum)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--shape", help="1b or 8b, on a GPU")
    options = parser.parse_args()
    print("| sequences | " + " | ".join(STAGES) + " | in all |")
    print("|---|" + "---|" * (len(STAGES) + 1))
    with torch.inference_mode():
        if options.shape:
            from step import build  # needs a GPU

            runner, _ = build(options.shape)
        else:
            runner = brook()
        for epoch, sequences in enumerate(options.sequences, 1):
            times = measure(runner, sequences, epoch)
            cells = [f"{time:.0f}" for time in (*times, sum(times))]
            print(f"| {sequences} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

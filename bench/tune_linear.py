"""Measures which kernel multiplies fastest, per shape and number of rows, and writes the table.

    PYTHONPATH=kernels python bench/tune_linear.py [--shapes 4096x4096,g14336x4096] [--write]

A shape is OUTPUTSxINPUTS of a linear's weights; g before it means gate and up, OUTPUTS rows each.
Every candidate runs as a chain in a CUDA graph, over weights that together exceed the L2 cache, so
that the gaps between kernels count. Rows 2 to 16 share one plan and 32 and 64 rows its number of
splits, unless --free: then sums are added in the same order in all of them. `--write` puts the
table, with times of the plan and of cuBLAS, into the installed penstock_kernels, which uses it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
from penstock_kernels.linear.launch import run
from penstock_kernels.linear.plan import (
    TUNED,
    Gemv,
    Library,
    Plan,
    Problem,
    Skinny,
    slug,
    written,
)
from torch import Tensor

SHAPES = (
    "6144x4096,4096x4096,g14336x4096,4096x14336,128256x4096,"  # Llama 8B
    "3072x2048,2048x2048,g8192x2048,2048x8192,128256x2048,"  # Llama 1B
    "3072x4096,4096x2048,g7168x4096,4096x7168,64128x4096"  # half of an 8B
)
CUDA = torch.device("cuda")
CHAIN = 48  # kernels of a graph at least: its launch must not count
CHAIN_US = 1500.0  # and their time together at least
TILES = (  # weight rows, inputs of a turn, warps
    (16, 256, 2), (16, 256, 4), (32, 128, 4), (32, 256, 4), (64, 64, 4), (64, 128, 4),
    (64, 256, 4), (128, 64, 4), (128, 128, 4), (128, 64, 8),
)  # fmt: skip
SHARED_BYTES = 200_000  # of a multiprocessor


@dataclass(frozen=True)
class Timed:
    """A plan and its microseconds."""

    us: float
    plan: Plan


def parse(text: str) -> list[Problem]:
    """The shapes of the command line."""
    problems = []
    for item in text.split(","):
        outputs, inputs = map(int, item.removeprefix("g").split("x"))
        problems.append(Problem(outputs, inputs, item.startswith("g")))
    return problems


def gemvs(problem: Problem) -> list[Plan]:
    """Plans for one row that fit the registers."""
    depth, sides = triton.next_power_of_2(problem.inputs), 1 + problem.gated
    found: list[Plan] = []
    for tile in (1, 2, 4, 8):
        for warps in (2, 4, 8, 16):
            weights, row = sides * tile * depth // (32 * warps), depth // (32 * warps)
            if not 8 <= weights <= 64 or row > 64:
                continue
            resident = 65536 // ((weights + row // 2 + 32) * 32 * warps)
            turns = (
                n for n in (1, 2, 3, 4, 6, 8) if n <= resident and problem.outputs > 150 * n * tile
            )
            found += [Gemv(tile, warps, programs) for programs in (0, *turns)]
    return found


def skinnies(problem: Problem, rows: int) -> list[Plan]:
    """Plans on the matrix units."""
    return [
        Skinny(tile, depth, splits, warps, stages)
        for tile, depth, warps in TILES
        for stages in (3, 4, 5, 6, 8)
        for splits in ((1,) if problem.gated else (1, 2, 4, 8))
        if _fits(problem, rows, Skinny(tile, depth, splits, warps, stages))
    ]


def _fits(problem: Problem, rows: int, plan: Skinny) -> bool:
    """Whether a plan fits shared memory, and gives all multiprocessors work of a useful size."""
    columns = plan.tile * (1 + problem.gated) + max(rows, 16)
    programs = -(-problem.outputs // plan.tile) * plan.splits
    return (
        16_000 <= columns * plan.depth * 2 * (plan.stages - 1) <= SHARED_BYTES
        and programs >= 60
        and (plan.splits == 1 or programs <= 900)
        and problem.inputs % (plan.splits * plan.depth) == 0
    )


def candidates(problem: Problem, rows: int) -> list[Plan]:
    """All plans for a bucket."""
    return (gemvs(problem) if rows == 1 else []) + skinnies(problem, rows)


def microseconds(multiply: Callable[[int], Tensor], estimate: float) -> float:
    """Median time of one product in a chain; `multiply(i)` does the i-th."""
    chain = max(CHAIN if estimate < 40 else 12, int(CHAIN_US / max(estimate, 1.0)))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        multiply(0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for turn in range(chain):
                multiply(turn)
    graph.replay()
    times = []
    for _ in range(3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return 1e3 * statistics.median(times) / chain


class Bench:
    """The weights of one problem, and what its products cost."""

    def __init__(self, problem: Problem) -> None:
        rows = problem.outputs * (1 + problem.gated)
        self.bytes = 2 * rows * problem.inputs
        count = max(2, -(-300_000_000 // self.bytes))
        self.weights = [
            torch.randn(rows, problem.inputs, dtype=torch.bfloat16, device=CUDA)
            * problem.inputs**-0.5
            for _ in range(count)
        ]
        self.problem = problem

    def time(self, plan: Plan, x: Tensor) -> float:
        """Microseconds of a plan."""

        def multiply(turn: int) -> Tensor:
            return run(plan, self.problem, x, self.weights[turn % len(self.weights)], None)

        return microseconds(multiply, self.bytes / 4e6)

    def error(self, plan: Plan, x: Tensor) -> float:
        """||out - exact|| / ||exact||, the exact product in float64 of some outputs."""
        weight, problem = self.weights[0], self.problem
        some = torch.randperm(problem.outputs, device=CUDA)[:512]
        exact = x.double() @ weight[some].double().t()
        if problem.gated:
            up = x.double() @ weight[some + problem.outputs].double().t()
            exact = torch.nn.functional.silu(exact) * up
        out = run(plan, problem, x, weight, None)[:, some].double()
        return float((out - exact).norm() / exact.norm())

    def ranked(self, rows: int) -> list[Timed]:
        """Plans that are right, fastest first."""
        x = torch.randn(rows, self.problem.inputs, dtype=torch.bfloat16, device=CUDA)
        found = []
        for plan in candidates(self.problem, rows):
            try:
                if (error := self.error(plan, x)) > 6e-3:
                    raise SystemExit(f"{self.problem} x {rows} by {plan}: error {error:.1e}")
                found.append(Timed(self.time(plan, x), plan))
            except triton.runtime.errors.OutOfResources:
                continue
        return sorted(found, key=lambda timed: timed.us)


def compile_one(job: tuple[Problem, int, Plan]) -> None:
    """Fills Triton's cache, in a process of its own."""
    problem, rows, plan = job
    small = Problem(256, problem.inputs, problem.gated)
    x = torch.zeros(rows, problem.inputs, dtype=torch.bfloat16, device=CUDA)
    weight = torch.zeros(256 * (1 + problem.gated), problem.inputs, dtype=x.dtype, device=CUDA)
    try:
        run(plan, small, x, weight, None)
    except triton.runtime.errors.OutOfResources:
        return


def compile_all(problems: list[Problem]) -> int:
    """Compiles the candidates on all cores; returns how many kernels there are."""
    jobs = {}
    for problem in problems:
        for rows in (1, 16, 32, 64):
            for plan in candidates(problem, rows):
                wide = triton.next_power_of_2(problem.inputs) if isinstance(plan, Gemv) else 0
                key = (plan, wide, problem.gated, max(rows, 16) if not wide else 1)
                jobs.setdefault(key, (problem, rows, plan))
    processes = max(1, (os.cpu_count() or 2) - 2)
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        pool.map(compile_one, list(jobs.values()), chunksize=4)
    return len(jobs)


def best(ranked: dict[int, list[Timed]], library: dict[int, float], free: bool) -> dict[int, Timed]:
    """The plan of every bucket: fastest alone if `free`, else with splits that 2 to 64 share."""
    many = [rows for rows in ranked if rows > 1]

    def fastest(rows: int, splits: int | None) -> Timed:
        allowed = [
            t for t in ranked[rows]
            if splits is None or not isinstance(t.plan, Skinny) or t.plan.splits == splits
        ]  # fmt: skip
        return min((*allowed[:1], Timed(library[rows], Library())), key=lambda t: t.us)

    def cost(splits: int) -> float:
        return sum(fastest(rows, splits).us / ranked[rows][0].us for rows in many)

    splits = None if free or not many else min((1, 2, 4, 8), key=cost)
    return {rows: fastest(rows, splits if rows > 1 else None) for rows in ranked}


def tune(problem: Problem, free: bool) -> list[dict[str, object]]:
    """Table entries of one problem."""
    bench, ranked, library = Bench(problem), {}, {}
    for rows in (1, 16, 32, 64):
        x = torch.randn(rows, problem.inputs, dtype=torch.bfloat16, device=CUDA)
        library[rows] = bench.time(Library(), x)
        ranked[rows] = bench.ranked(rows)
    chosen, entries = best(ranked, library, free), []
    for rows in (1, 2, 4, 8, 16, 32, 64):
        timed = chosen[rows if rows == 1 else max(rows, 16)]
        measured = rows if rows == 1 else max(rows, 16)
        entries.append(
            {
                "outputs": problem.outputs,
                "inputs": problem.inputs,
                "gated": problem.gated,
                "rows": rows,
                "plan": written(timed.plan),
                "us": round(timed.us, 2),
                "library_us": round(library[measured], 2),
            }
        )
        if rows == measured:
            free_us = ranked[rows][0]
            print(
                f"{'g' if problem.gated else ''}{problem.outputs}x{problem.inputs} rows {rows}: "
                f"{timed.us:.2f} us {bench.bytes / timed.us / 1e6:.2f} TB/s {written(timed.plan)}, "
                f"cuBLAS {library[rows]:.2f}, unbound {free_us.us:.2f} {written(free_us.plan)}",
                flush=True,
            )
    return entries


def main() -> int:
    parser = argparse.ArgumentParser(description="Tunes the linears of a CUDA device.")
    parser.add_argument("--shapes", default=SHAPES, type=parse, metavar="LIST")
    parser.add_argument("--free", action="store_true", help="fastest plan of every bucket alone")
    parser.add_argument("--write", action="store_true", help="into the installed package")
    parser.add_argument("--out", metavar="FILE", help="the table, somewhere else")
    options = parser.parse_args()
    began = time.monotonic()
    kernels = compile_all(options.shapes)
    print(f"{kernels} kernels compiled in {time.monotonic() - began:.0f} s", flush=True)
    torch.manual_seed(0)
    entries = [entry for problem in options.shapes for entry in tune(problem, options.free)]
    device = torch.cuda.get_device_name()
    table = {"device": device, "torch": torch.__version__, "triton": triton.__version__}
    lines = ",\n".join("  " + json.dumps(entry) for entry in entries)
    head = json.dumps(table)[1:-1]
    text = f'{{{head},\n "entries": [\n{lines}\n]}}\n'
    if options.write:
        options.out = str(TUNED / f"{slug(device)}.json")
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(text)
    print(f"{time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

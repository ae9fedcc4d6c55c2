"""Measures which plan multiplies fastest, per problem and bucket of rows.

Every candidate runs as a chain in a CUDA graph, over weights that together exceed the L2 cache, so
that the gaps between kernels count. Its result is compared with the exact product first. Kernels
are compiled beforehand, on all cores. Both stop at a deadline: candidates that were good on an
H200 come first, so the rest of the list matters less.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import zip_longest

import torch
import triton
from torch import Tensor

from ..device import divided_up, power_of_two
from .plan import BUCKETS, FEW, LEAST_ROWS, Gemv, Library, Plan, Problem, Skinny
from .table import Measured, written
from .triton import run

CUDA = torch.device("cuda")
CHAIN = 48  # kernels of a graph at least: its launch must not count
CHAIN_US = 1500.0  # and their time together at least
MEASURED = (1, 16, 32, 64, 128, 256)  # rows; 2 to 8 take the plan of 16
TILES = (  # of few rows: weight rows, inputs of a turn, warps
    (64, 128, 4), (64, 64, 4), (128, 128, 4), (64, 256, 4), (128, 64, 4), (128, 64, 8),
    (32, 128, 4), (32, 256, 4), (16, 256, 4), (16, 256, 2),
)  # fmt: skip
WIDE_TILES = ((128, 64, 8), (64, 64, 4), (64, 64, 8), (128, 64, 4), (64, 128, 8), (128, 128, 8))
STAGES = (4, 5, 8, 3, 6)
WIDE_STAGES = (4, 3, 5)
SPLITS = (1, 2, 4, 8, 5, 3, 7)  # 17,920 inputs, as of Phi-4, want 5
REGISTERS = 128  # of a thread, for sums
SHARED_BYTES = 200_000  # of a multiprocessor
WEIGHTS_BYTES = 300_000_000  # more than any L2 cache
COMPILING_SHARE = 0.5  # of the time, at most
TOLERANCE = 6e-3  # ||out - exact|| / ||exact||

Variant = tuple[Plan, int, bool, bool, int]  # candidates with equal ones share their kernel
Job = tuple[Problem, int, Plan]  # a product of that many rows


class WrongProduct(Exception):
    """A kernel's result is not the product; the message names the kernel."""


@dataclass(frozen=True)
class Timed:
    """A plan and its microseconds."""

    us: float
    plan: Plan


@dataclass(frozen=True)
class Options:
    """How to tune."""

    seconds: float
    """After these no further candidate is tried."""
    free: bool = False
    """Whether each bucket gets its fastest plan; else 2 to FEW rows add in the same order."""
    rows: tuple[int, ...] = MEASURED
    """Of MEASURED, those to measure; the others' buckets keep the plans that they have."""


def tune(
    problems: list[Problem], options: Options, report: Callable[[str], None]
) -> list[Measured]:
    """Returns the fastest plans found in time, for problems and buckets that there was time for;
    `report` gets progress.

    Raises WrongProduct if a kernel computes something else here. Call it before this process has
    touched the GPU, or after: the processes that compile are fresh ones.
    """
    began = time.monotonic()
    deadline = began + COMPILING_SHARE * options.seconds
    compiled = compile_all(problems, options.rows, deadline)
    report(f"{len(compiled)} kernels compiled in {time.monotonic() - began:.0f} s")
    torch.manual_seed(0)
    found: list[Measured] = []
    end = began + options.seconds
    for index, problem in enumerate(problems):
        now = time.monotonic()
        until = now + max(end - now, 0.0) / (len(problems) - index)
        found += _tune_one(Bench(problem, compiled), until, options, report)
    return found


def gemvs(problem: Problem) -> list[Plan]:
    """Plans for one row that fit the registers."""
    depth, sides = power_of_two(problem.inputs), 1 + problem.gated
    found: list[Plan] = []
    for tile in (2, 1, 4, 8):
        for warps in (8, 4, 16, 2):
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
        for tile, depth, warps in (TILES if rows <= FEW else WIDE_TILES)
        for stages in (STAGES if rows <= FEW else WIDE_STAGES)
        for splits in ((1,) if problem.gated else SPLITS)
        if _fits(problem, rows, Skinny(tile, depth, splits, warps, stages))
    ]


def _fits(problem: Problem, rows: int, plan: Skinny) -> bool:
    """Whether a plan fits shared memory, and gives all multiprocessors work of a useful size."""
    rows, weights = max(rows, LEAST_ROWS), plan.tile * (1 + problem.gated)
    programs = divided_up(problem.outputs, plan.tile) * plan.splits
    return (
        16_000 <= plan.shared_bytes(problem.gated, rows) <= SHARED_BYTES
        and rows * weights <= REGISTERS * 32 * plan.warps
        and programs >= 60
        and (plan.splits == 1 or programs <= 900)
        and problem.inputs % (plan.splits * plan.depth) == 0
    )


def candidates(problem: Problem, rows: int) -> list[Plan]:
    """Returns all plans for a bucket, the most promising first."""
    return (gemvs(problem) if rows == 1 else []) + skinnies(problem, rows)


def replays(step: Callable[[], object], count: int) -> list[float]:
    """Milliseconds of each replay of a CUDA graph of `step`, which runs once before."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as NCCL's, may ask after their events meanwhile.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            step()
    times: list[float] = []
    for _ in range(count):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return times


def microseconds(multiply: Callable[[int], Tensor], estimate: float) -> float:
    """Median time of one product in a chain; `multiply(i)` does the i-th."""
    length = max(CHAIN if estimate < 40 else 12, int(CHAIN_US / max(estimate, 1.0)))

    def chain() -> None:
        for turn in range(length):
            multiply(turn)

    return float(1e3 * statistics.median(replays(chain, 4)[1:]) / length)


class Bench:
    """Measures the products of one problem."""

    def __init__(self, problem: Problem, compiled: set[Variant]) -> None:
        rows = problem.outputs * (1 + problem.gated)
        self.bytes = 2 * rows * problem.inputs
        self.weights = [
            torch.randn(rows, problem.inputs, dtype=torch.bfloat16, device=CUDA)
            * problem.inputs**-0.5
            for _ in range(max(2, divided_up(WEIGHTS_BYTES, self.bytes)))
        ]
        self.problem = problem
        self.compiled = compiled

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

    def checked_time(self, plan: Plan, x: Tensor) -> float:
        """As `time`, after a check of the result. Raises WrongProduct."""
        if (error := self.error(plan, x)) > TOLERANCE:
            raise WrongProduct(f"{self.problem} x {len(x)} by {plan}: error {error:.1e}")
        return self.time(plan, x)

    def ranked(self, x: Tensor, until: float) -> list[Timed]:
        """Plans that are right, fastest first; those that were compiled and tried in time."""
        found, rows = [], len(x)
        for plan in candidates(self.problem, rows):
            if variant(self.problem, rows, plan) not in self.compiled:
                continue
            if time.monotonic() > until:
                break
            try:
                found.append(Timed(self.checked_time(plan, x), plan))
            except triton.runtime.errors.OutOfResources:
                continue
        return sorted(found, key=lambda timed: timed.us)


def variant(problem: Problem, rows: int, plan: Plan) -> Variant:
    """Returns the parameters that determine a candidate's compiled kernel."""
    whole = problem.outputs % 16 == 0  # Triton compiles for sizes that are multiples of 16
    if isinstance(plan, Gemv):
        some = Gemv(plan.tile, plan.warps, min(plan.programs, 1))
        return some, power_of_two(problem.inputs), problem.gated, whole, 1
    return plan, 0, problem.gated, whole, max(rows, LEAST_ROWS)


def compile_jobs(problems: Iterable[Problem], wanted: Iterable[int]) -> dict[Variant, Job]:
    """Returns a product for each kernel; first those of the most promising plans of all problems
    and rows, as time may be short."""
    wanted = tuple(wanted)
    columns = [
        [(problem, rows, plan) for plan in candidates(problem, rows)]
        for problem in problems
        for rows in wanted
    ]
    found: dict[Variant, Job] = {}
    for row in zip_longest(*columns):
        found |= {variant(*job): job for job in row if job is not None}
    return found


def compile_all(
    problems: Iterable[Problem], wanted: Iterable[int], deadline: float
) -> set[Variant]:
    """Compiles the candidates on all cores; returns those that were done by the deadline."""
    jobs = compile_jobs(problems, wanted)
    processes = max(1, min(len(jobs), (os.cpu_count() or 2) - 2))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # torch is imported once for all of them
    done = set()
    with context.Pool(processes) as pool:
        results = {key: pool.apply_async(compile_one, job) for key, job in jobs.items()}
        for key, result in results.items():
            try:
                result.get(max(deadline - time.monotonic(), 0.0))
                done.add(key)
            except multiprocessing.TimeoutError:
                continue
    return done


def compile_one(problem: Problem, rows: int, plan: Plan) -> None:
    """Fills Triton's cache, in a process of its own."""
    outputs = 256 + problem.outputs % 16
    small = Problem(outputs, problem.inputs, problem.gated)
    x = torch.zeros(rows, problem.inputs, dtype=torch.bfloat16, device=CUDA)
    weight = x.new_zeros(outputs * (1 + problem.gated), problem.inputs)
    try:
        run(plan, small, x, weight, None)
    except triton.runtime.errors.OutOfResources:
        return


def best(ranked: dict[int, list[Timed]], library: dict[int, float], free: bool) -> dict[int, Timed]:
    """The plan of every bucket: fastest alone if `free`, else with splits that 2 to FEW share."""
    many = [rows for rows in ranked if 1 < rows <= FEW]

    def fastest(rows: int, splits: int | None) -> Timed:
        allowed = [
            t for t in ranked[rows]
            if splits is None or not isinstance(t.plan, Skinny) or t.plan.splits == splits
        ]  # fmt: skip
        return min((*allowed[:1], Timed(library[rows], Library())), key=lambda t: t.us)

    def cost(splits: int) -> float:
        return sum(fastest(rows, splits).us / fastest(rows, None).us for rows in many)

    splits = None if free or not many else min(SPLITS, key=cost)
    return {rows: fastest(rows, splits if rows in many else None) for rows in ranked}


def _tune_one(
    bench: Bench, until: float, options: Options, report: Callable[[str], None]
) -> list[Measured]:
    """Measures all requested buckets of one problem."""
    problem, ranked, library = bench.problem, {}, {}
    for index, rows in enumerate(options.rows):
        x = torch.randn(rows, problem.inputs, dtype=torch.bfloat16, device=CUDA)
        library[rows] = bench.checked_time(Library(), x)
        now = time.monotonic()
        share = max(until - now, 0.0) / (len(options.rows) - index)
        ranked[rows] = bench.ranked(x, now + share)
        if not ranked[rows] and candidates(problem, rows):
            report(f"{_name(problem)} rows {rows}: no time to try a kernel; a rule chooses one")
            del ranked[rows]
    chosen = best(ranked, library, options.free)
    for rows, timed in chosen.items():
        report(_line(bench, rows, timed, library[rows], len(ranked[rows])))
    found = []
    for rows in BUCKETS:
        measured = rows if rows == 1 else max(rows, LEAST_ROWS)
        if measured not in chosen:
            continue
        timed = chosen[measured]
        found.append(Measured(problem, rows, timed.plan, timed.us, library[measured]))
    return found


def _line(bench: Bench, rows: int, timed: Timed, library_us: float, tried: int) -> str:
    rate = bench.bytes / timed.us / 1e6
    return (
        f"{_name(bench.problem)} rows {rows}: {timed.us:.2f} us, {rate:.2f} TB/s, "
        f"{written(timed.plan)} of {tried} tried; library {library_us:.2f} us"
    )


def _name(problem: Problem) -> str:
    return f"{'g' if problem.gated else ''}{problem.outputs}x{problem.inputs}"

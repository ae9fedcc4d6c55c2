"""The tuner, without the times themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from penstock_kernels.linear import table
from penstock_kernels.linear import tune as tuner
from penstock_kernels.linear.plan import BUCKETS, Gemv, Library, Plan, Problem, Skinny
from penstock_kernels.linear.table import broken_rule
from penstock_kernels.linear.tune import (
    MEASURED,
    Bench,
    Options,
    Timed,
    WrongProduct,
    best,
    candidates,
    tune,
    variant,
)
from torch import Tensor

SHAPES = [(3072, 4096), (4096, 2048), (128256, 4096), (1536, 2048), (4096, 14336), (32003, 288)]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_candidates_are_plans_that_a_table_may_hold(outputs: int, inputs: int, gated: bool) -> None:
    problem = Problem(outputs, inputs, gated)
    for rows in MEASURED:
        plans = candidates(problem, rows)
        assert len(set(plans)) == len(plans)
        assert {broken_rule(plan, problem, rows) for plan in plans} <= {None}
        assert len({variant(problem, rows, plan) for plan in plans}) <= len(plans)


def test_kernels_are_compiled_once_for_shapes_that_share_them() -> None:
    plan = Skinny(64, 128, 1, 4, 5)
    shapes = [Problem(4096, 4096, False), Problem(2048, 8192, False)]
    assert len({variant(shape, rows, plan) for shape in shapes for rows in (1, 16)}) == 1
    assert len({variant(shapes[0], 1, Gemv(2, 4, n)) for n in (0, 1, 2, 8)}) == 2


def test_buckets_of_2_to_64_rows_share_the_number_of_splits() -> None:
    one, two = Skinny(64, 128, 1, 4, 5), Skinny(64, 128, 2, 4, 5)
    ranked = {
        1: [Timed(3.0, Gemv(2, 4, 4))],
        16: [Timed(5.0, two), Timed(5.5, one)],
        32: [Timed(6.0, one), Timed(6.2, two)],
    }
    library = {1: 4.0, 16: 7.0, 32: 7.0}
    alone = best(ranked, library, free=True)
    assert [alone[rows].plan for rows in ranked] == [Gemv(2, 4, 4), two, one]
    shared = best(ranked, library, free=False)
    assert [shared[rows].plan for rows in ranked] == [Gemv(2, 4, 4), two, two]
    ranked[128], library[128] = [Timed(7.0, one)], 9.0  # more rows share nothing
    assert best(ranked, library, free=False)[128].plan == one
    library[32] = 5.0
    assert best(ranked, library, free=False)[32] == Timed(5.0, Library())
    assert best({16: []}, {16: 7.0}, free=False)[16].plan == Library()


FAST = Skinny(64, 64, 2, 4, 5)


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[Plan], None]:
    """Products by torch, and times that say that one-row products in registers and FAST are
    fastest; returns what makes a plan compute something else."""
    wrong: list[Plan] = []

    def run(plan: Plan, problem: Problem, x: Tensor, weight: Tensor, bias: None) -> Tensor:
        out = torch.nn.functional.linear(x, weight)
        if problem.gated:
            gate, up = out.chunk(2, dim=1)
            out = torch.nn.functional.silu(gate) * up
        return 1.1 * out if plan in wrong else out

    def time(bench: Bench, plan: Plan, x: Tensor) -> float:
        if isinstance(plan, Gemv):
            return 3.0
        return 4.0 if plan == FAST else 5.0 if isinstance(plan, Library) else 6.0

    def compile_all(
        problems: list[Problem], wanted: tuple[int, ...], deadline: float
    ) -> set[tuner.Variant]:
        return {variant(p, r, plan) for p in problems for r in wanted for plan in candidates(p, r)}

    monkeypatch.setattr(tuner, "CUDA", torch.device("cpu"))
    monkeypatch.setattr(tuner, "WEIGHTS_BYTES", 1)
    monkeypatch.setattr(tuner, "run", run)
    monkeypatch.setattr(Bench, "time", time)
    monkeypatch.setattr(tuner, "compile_all", compile_all)
    return wrong.append


PROBLEMS = [Problem(4096, 256, False), Problem(4096, 256, True)]


@pytest.mark.usefixtures("on_the_cpu")
def test_the_fastest_plans_make_a_table(tmp_path: Path) -> None:
    lines: list[str] = []
    found = tune(PROBLEMS, Options(3600.0), lines.append)
    plain, gated = found[: len(BUCKETS)], found[len(BUCKETS) :]
    assert [one.rows for one in plain] == [one.rows for one in gated] == list(BUCKETS)
    assert isinstance(plain[0].plan, Gemv) and plain[0].us == 3.0
    assert {one.plan for one in plain[1:]} == {FAST}
    assert {one.plan for one in gated[1:]} == {Library()}  # FAST splits, which gates cannot be
    assert len(lines) == 1 + 2 * len(MEASURED)
    written = json.loads(table.merged(tmp_path / "none", "Some GPU", found))
    assert len(written["entries"]) == 2 * len(BUCKETS)


@pytest.mark.usefixtures("on_the_cpu")
def test_some_rows_can_be_measured_alone() -> None:
    found = tune(PROBLEMS[:1], Options(3600.0, rows=(16, 256)), lambda line: None)
    assert [one.rows for one in found] == [2, 4, 8, 16, 256]


@pytest.mark.usefixtures("on_the_cpu")
def test_without_time_a_table_gets_no_plans() -> None:
    """The library's may be slower than those of the rule."""
    lines: list[str] = []
    assert tune(PROBLEMS, Options(0.0), lines.append) == []
    assert "g4096x256 rows 16: no time to try a kernel; a rule chooses one" in lines


def test_the_most_promising_kernels_of_all_problems_are_compiled_first() -> None:
    """Those of the second problem do not wait for all of the first one's."""
    jobs = list(tuner.compile_jobs(PROBLEMS, (1, 32)).values())
    first = [candidates(problem, rows)[0] for problem in PROBLEMS for rows in (1, 32)]
    assert [plan for _, _, plan in jobs[:4]] == first


def test_a_wrong_product_ends_the_tuning(on_the_cpu: Callable[[Plan], None]) -> None:
    on_the_cpu(FAST)
    with pytest.raises(WrongProduct, match="4096"):
        tune(PROBLEMS, Options(3600.0), lambda line: None)


@pytest.mark.gpu
def test_tuning_ends_in_time_and_beats_or_equals_the_library() -> None:
    lines: list[str] = []
    problems = [Problem(2048, 1024, False), Problem(512, 1024, True)]
    # Half of it for compiling, whose processes take 15 s to begin on slow machines.
    found = tune(problems, Options(120.0), lines.append)
    assert len(found) == 2 * len(BUCKETS)
    assert all(one.us <= one.library_us for one in found)
    assert any(isinstance(one.plan, Gemv | Skinny) for one in found)
    assert len(lines) == 1 + 2 * len(MEASURED)

"""The tuner, but for the times themselves."""

from __future__ import annotations

import pytest
from penstock_kernels.linear.plan import Gemv, Library, Problem, Skinny
from penstock_kernels.linear.table import broken_rule
from penstock_kernels.linear.tune import MEASURED, Options, Timed, best, candidates, tune, variant

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
    library[32] = 5.0
    assert best(ranked, library, free=False)[32] == Timed(5.0, Library())
    assert best({16: []}, {16: 7.0}, free=False)[16].plan == Library()


@pytest.mark.gpu
def test_tuning_ends_in_time_and_beats_or_equals_the_library() -> None:
    lines: list[str] = []
    problems = [Problem(2048, 1024, False), Problem(512, 1024, True)]
    found = tune(problems, Options(30.0), lines.append)
    assert len(found) == 2 * 7
    assert all(one.us <= one.library_us for one in found)
    assert any(isinstance(one.plan, Gemv | Skinny) for one in found)
    assert len(lines) == 1 + 2 * len(MEASURED)

"""`linear` beyond the cases: plans, and what does not change a row's result."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from penstock_kernels import linear, norm_linear
from penstock_kernels.linear import adds
from penstock_kernels.linear.plan import BUCKETS, Gemv, Library, Problem, Skinny, bucket, rule
from penstock_kernels.linear.table import SHIPPED, broken_rule, shipped_path, tuned, written

SHARED, LITTLE_SHARED = 232_448, 101_376  # bytes a program: of an H200, and of most GPUs
TABLES = sorted(SHIPPED.glob("*.json"))


def test_buckets_hold_their_rows() -> None:
    assert [bucket(rows) for rows in (1, 2, 3, 9, 33, 64, 65)] == [1, 2, 4, 16, 64, 64, 128]
    assert bucket(257) is None


# Whose plan was chosen by the time of steps (bench/results/kernels.md), not by that of a chain.
FASTER_IN_STEPS = [Problem(5120, 17920, False)]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_tables_hold_plans_that_beat_the_library(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    table = json.loads(path.read_text())
    assert shipped_path(table["device"]) == path
    tuned.cache_clear()
    plans = tuned(table["device"])
    tuned.cache_clear()
    assert len(plans) == len(table["entries"]) > 0
    for entry in table["entries"]:
        problem = Problem(entry["outputs"], entry["inputs"], entry["gated"])
        assert written(plans[problem, entry["rows"]]) == entry["plan"]
        assert entry["us"] <= entry["library_us"] or problem in FASTER_IN_STEPS


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("outputs", [1, 100, 4096, 200_000])
@pytest.mark.parametrize("inputs", [8, 100, 2304, 2560, 4096, 12288, 40_000])
def test_the_rule_knows_every_shape(outputs: int, inputs: int, gated: bool) -> None:
    for rows in BUCKETS:
        problem = Problem(outputs, inputs, gated)
        assert broken_rule(rule(problem, rows, 132, SHARED), problem, rows) is None


@pytest.mark.parametrize("gated", [False, True])
def test_the_rule_fits_gpus_with_little_shared_memory(gated: bool) -> None:
    problem = Problem(14336, 4096, gated)
    for rows in BUCKETS:
        plan, roomy = rule(problem, rows, 80, LITTLE_SHARED), rule(problem, rows, 80, SHARED)
        assert type(plan) is type(roomy)
        assert not isinstance(plan, Skinny) or plan.shared_bytes(gated, rows) <= LITTLE_SHARED


def test_a_plan_that_does_not_fit_is_the_librarys_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Products of other numbers of rows keep their kernels."""
    launch = importlib.import_module("penstock_kernels.linear.triton")
    launched = []

    def skinny(_plan: Any, _problem: Any, x: torch.Tensor, *_: Any) -> None:
        launched.append(len(x))
        if len(x) == 32:
            raise launch.OutOfResources(122_880, LITTLE_SHARED, "shared memory")

    monkeypatch.setattr(launch, "_launch_skinny", skinny)
    monkeypatch.setattr(launch, "TOO_LARGE", set())
    weight = torch.randn(256, 128).bfloat16()
    for rows in (32, 8, 32, 8):
        x = torch.randn(rows, 128).bfloat16()
        out = launch.linear(x, weight, None, gated=False)
        assert rows == 8 or torch.equal(out, torch.nn.functional.linear(x, weight))
    assert launched == [32, 8, 8]
    assert caplog.text.count("the plan for 32 rows") == 1


def test_a_gpu_without_a_table_follows_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = importlib.import_module("penstock_kernels.linear.triton")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Maker's GPU 9000")
    monkeypatch.setattr(launch, "processors", lambda device: 60)
    monkeypatch.setattr(launch, "shared_bytes", lambda device: SHARED)
    problem, device = Problem(4096, 4096, False), torch.device("cuda:63")
    for rows in BUCKETS:
        assert launch.choose(device, problem, rows) == rule(problem, rows, 60, SHARED)


def test_without_triton_all_products_are_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "penstock_kernels.linear.triton", None)
    x: Any = SimpleNamespace(is_cuda=True)
    assert adds(x, x)


def test_the_rule_leaves_registers_empty_only_where_tiles_do_not_fit() -> None:
    assert isinstance(rule(Problem(5120, 5120, False), 1, 132, SHARED), Skinny)
    assert isinstance(rule(Problem(4096, 12288, False), 1, 132, SHARED), Gemv)
    assert isinstance(rule(Problem(4096, 5100, False), 1, 132, SHARED), Gemv)


def test_the_rule_leaves_odd_shapes_to_the_library() -> None:
    assert isinstance(rule(Problem(64, 50, False), 2, 132, SHARED), Library)


@pytest.mark.gpu
@pytest.mark.parametrize(("outputs", "inputs"), [(4096, 14336), (2048, 8192), (500, 1024)])
def test_a_row_does_not_depend_on_its_bucket_or_on_timing(outputs: int, inputs: int) -> None:
    x = torch.randn(64, inputs, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16) * inputs**-0.5
    torch.cuda.synchronize()
    for rows in (16, 32, 64):
        once = linear(x[:rows], weight)
        for _ in range(20):
            assert torch.equal(linear(x[:rows], weight), once)
        assert torch.equal(linear(x[: rows - 3], weight), once[: rows - 3])


@pytest.mark.gpu
def test_products_in_a_graph_are_those_outside() -> None:
    """Early launches of dependent kernels keep their order when a graph replays them."""
    weight = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) / 64
    scale = torch.randn(4096, device="cuda", dtype=torch.bfloat16)
    gate = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16) / 64
    for rows in (1, 5):
        x = torch.randn(rows, 4096, device="cuda", dtype=torch.bfloat16)

        def chain(x: torch.Tensor = x) -> torch.Tensor:
            residual = x
            for _ in range(6):
                x = linear(x, weight)
                x, residual = norm_linear(x, residual, scale, 1e-5, gate, gated=True)
            return x

        expected = chain()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            out = chain()
        for _ in range(10):
            out.fill_(torch.nan)
            graph.replay()
            assert torch.equal(out, expected)

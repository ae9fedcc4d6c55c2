"""The CPU backend's kernels against the ops' references in float64, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from penstock import cpu
from penstock._core import cpu as native
from penstock.cpu.ops import KERNELS
from penstock.quant.panels import Panels
from penstock_kernels.case import TOLERANCE, Case, Size, cases
from penstock_kernels.op import OPS
from test_ops import check, compare

HOST = torch.device("cpu")


def of_these_dtypes(case: Case) -> bool:
    return case.name.startswith(("f32", "bf16"))


EVERY_CASE = [
    pytest.param(kernel, case, id=f"{kernel.__name__}-{case.name}")
    for kernel in KERNELS
    for case in cases(OPS[kernel.__name__])
    if case.size is Size.SMALL and of_these_dtypes(case)
]


@pytest.mark.parametrize(("kernel", "case"), EVERY_CASE)
def test_cpu_kernels_match_the_references(kernel: Any, case: Case) -> None:
    compare(OPS[kernel.__name__], kernel, case, HOST)


@pytest.mark.parametrize("dtype", cpu.DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (15, 40), (64, 33), (100, 2100)])
@pytest.mark.parametrize("rows", [0, 1, 2, 4, 5, 7])
def test_linear(rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows + outputs)
    matrix, bias = torch.randn(outputs, inputs).to(dtype), torch.randn(outputs).to(dtype)
    x = torch.randn(rows, inputs + 3).to(dtype)[:, :inputs]
    for added in (None, bias):
        out = cpu.linear(x, cpu.pack(matrix), outputs, added)
        expected = x.double() @ matrix.double().t() + (0 if added is None else added.double())
        check(out, expected, TOLERANCE[dtype])


def test_linear_is_bitwise_independent_of_threads_and_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    panels, x = cpu.pack(torch.randn(1000, 1100)), torch.randn(70, 1100)
    together = cpu.linear(x, panels, 1000, None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    assert torch.equal(cpu.linear(x, panels, 1000, None), together)
    for row in (0, 3, 68, 69):
        assert torch.equal(
            cpu.linear(x[row : row + 1], panels, 1000, None), together[row : row + 1]
        )


def test_packed_weights_are_exact() -> None:
    method = Panels(torch.float32, HOST)
    for matrix, stored in (
        (torch.randn(20, 24).bfloat16().float(), torch.bfloat16),
        (torch.randn(20, 24), torch.float32),
    ):
        weights = method.finish({"weight": matrix})
        assert weights["panels"].dtype == stored
        assert torch.equal(method.dequantize(weights), matrix)


def test_mismatched_tensors_are_refused() -> None:
    x, short = torch.ones(2, 8), torch.ones(2, 3)
    with pytest.raises(ValueError, match="Bfloat16; expected Float32"):
        native.silu_mul(x, torch.ones(2, 4).bfloat16())
    with pytest.raises(ValueError, match="no kernel of this CPU backend takes"):
        native.silu_mul(x.double(), torch.ones(2, 4))
    with pytest.raises(ValueError, match="do not fit together"):
        native.silu_mul(x, short)
    with pytest.raises(ValueError, match="contiguous"):
        native.silu_mul(x.t(), torch.ones(8, 1))
    with pytest.raises(ValueError, match="overlap"):
        native.silu_mul(torch.ones(8).expand(2, 8), torch.ones(2, 4))
    with pytest.raises(ValueError, match="panels has shape"):
        native.linear(x, torch.ones(1, 7, 16), None, short, 1)


@pytest.mark.parametrize("wrong", ["block", "slot", "kv_len"])
def test_indices_out_of_range_are_refused(wrong: str) -> None:
    index = {"block": 3, "slot": 0, "kv_len": 9} | {
        wrong: {"block": 4, "slot": 1, "kv_len": 17}[wrong]
    }
    one = {name: torch.tensor([value], dtype=torch.int32) for name, value in index.items()}
    tables = one["block"].repeat(4)[None]
    q, cache = torch.ones(1, 2, 8), torch.ones(4, 2, 1, 4, 8)
    arguments = (q, cache, (tables, one["slot"], None, one["kv_len"]), (1.0, 0, 1), q.clone())
    with pytest.raises(IndexError, match="out of range"):
        native.paged_attention(*arguments)


@pytest.mark.parametrize("starts", [[0, 3, 1], [0, -1, 4], [0, 2, 5]])
def test_queries_that_share_a_row_are_refused(starts: list[int]) -> None:
    table, slots = torch.zeros(1, 2, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    q, cache = torch.ones(4, 2, 8), torch.ones(4, 2, 1, 4, 8)
    lengths = torch.tensor([4, 4], dtype=torch.int32)
    sequences = table, slots, torch.tensor(starts, dtype=torch.int32), lengths
    with pytest.raises(IndexError, match="do not fit q"):
        native.paged_attention(q, cache, sequences, (1.0, 0, 2), q.clone())


def test_output_aliasing_another_argument_is_refused() -> None:
    x, weight, index = torch.ones(4, 8), torch.ones(8), torch.tensor([0, 1, 2, 3])
    numbers, floats = torch.ones(4, dtype=torch.int64), torch.zeros(4)
    for call in (
        lambda: native.silu_mul(x, x[:, 4:]),
        lambda: native.rms_norm(x, weight, 1e-5, None, x),
        lambda: native.rms_norm(x.clone(), x[3], 1e-5, None, x),
        lambda: native.rms_norm(x, weight, 1e-5, (x.clone(), x), x.clone()),
        lambda: native.copy(x[1:], x[:-1]),
        lambda: native.gather(x, index, x),
        lambda: native.scatter(x, index, x),
        lambda: native.pick(index < 2, numbers, index, numbers),
        lambda: native.greedy(x, floats, numbers, floats),
        lambda: native.linear(x, cpu.pack(torch.eye(8)), None, x, 2),
    ):
        with pytest.raises(ValueError, match="shares memory"):
            call()
    assert torch.equal(x, torch.ones(4, 8))


def test_disjoint_columns_of_one_matrix_are_accepted() -> None:
    """As q, k and v are in every step: q is written, k and v are read."""
    qkv = torch.randn(3, 16)
    q, k, v = (part.view(3, -1, 4) for part in qkv.split([8, 4, 4], dim=1))
    apart = q.clone(), k.clone(), v.clone()
    angles, positions = torch.randn(8, 4), torch.arange(3, dtype=torch.int32)
    caches = torch.zeros(2, 2, 2, 1, 4, 4)
    for arguments, cache in (((q, k, v), caches[0]), (apart, caches[1])):
        native.rope_kv_write(*arguments, (angles, positions), (positions, None), cache)
    assert torch.equal(q, apart[0])
    assert torch.equal(caches[0], caches[1])
    with pytest.raises(ValueError, match="shares memory"):
        native.rope_kv_write(q, q[:, :1], v, (angles, positions), (positions, None), caches[0])

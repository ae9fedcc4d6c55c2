"""Every op on every case, against its own reference in float64.

On a CUDA device the kernels run compiled. Without one they run in Triton's interpreter, on the
small cases, in a process of its own: see test_interpreter.py.
"""

from __future__ import annotations

import os
import zlib
from typing import Any

import penstock_kernels  # noqa: F401  (registers the ops)
import pytest
import torch
from penstock_kernels.case import Case, Size, cases
from penstock_kernels.kv_quantization import FP8, Rows
from penstock_kernels.op import OPS, Op
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


LAUNCHES = 40

EVERY_CASE = [
    pytest.param(op, case, id=f"{op.name}-{case.name}") for op in OPS.values() for case in cases(op)
]
BENCH_CASES = [one for one in EVERY_CASE if one.values[1].size is Size.BENCH]


def run(implementation: Any, op: Op[..., Any], arguments: dict[str, Any]) -> list[Tensor]:
    """Everything the op returns and writes."""
    returned = implementation(**arguments)
    outputs = [returned] if isinstance(returned, Tensor) else list(returned or ())
    written = [name for name in op.mutates if name in arguments and name != "kv_params"]
    return outputs + [arguments[name] for name in written if not is_stored(arguments[name])]


def is_stored(tensor: Tensor) -> bool:
    """Whether a tensor is, or belongs to, a cache of fewer bits."""
    return tensor.dtype in (torch.uint8, *FP8)


def copied(arguments: dict[str, Any]) -> dict[str, Any]:
    """A deep copy that keeps strides: views of one fused tensor stay strided."""

    def copy(value: Any) -> Any:
        # An op cannot write into a tensor whose elements share memory.
        if not isinstance(value, Tensor) or 0 in value.stride():
            return value
        strided = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )
        return strided.copy_(value)

    return {name: copy(value) for name, value in arguments.items()}


def widened(arguments: dict[str, Any]) -> dict[str, Any]:
    """A copy in float64; sampling parameters keep the float32 that they are by definition, and
    caches of fewer bits their format."""

    def widen(name: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        defined = name in ("temperature", "top_p", "min_p", "typical_p", "kv_params")
        defined |= is_stored(value) or not value.is_floating_point()
        return value.clone() if defined else value.double()

    return {name: widen(name, value) for name, value in arguments.items()}


def check(out: Tensor, expected: Tensor, tolerance: float) -> None:
    """Integers equal; floats close row by row; NaN and infinities where the reference has them."""
    assert out.shape == expected.shape
    if not out.is_floating_point():
        assert torch.equal(out, expected)
        return
    if not out.numel():
        return
    assert torch.equal(out.isnan(), expected.isnan())
    infinite = expected.isinf()
    assert torch.equal(out[infinite].double(), expected[infinite].double())
    error = (out.double() - expected.double()).nan_to_num_(0)
    rows = expected.double().masked_fill(infinite, 0).nan_to_num_(0)
    worst = float((error.norm(dim=-1) / (rows.norm(dim=-1) + 1e-30)).max())
    assert worst <= tolerance, f"error {worst:.2e} of a row; {tolerance:.1e} is allowed"


ROWS_AT_ONCE = 1 << 20  # of a cache of fewer bits, whose numbers take 8 bytes here


def check_stored(out: dict[str, Any], expected: dict[str, Any]) -> None:
    """Caches of fewer bits are equal, except few elements that were close to the middle of two
    steps of their format."""
    found, wanted = out["kv_cache"].view(torch.uint8), expected["kv_cache"].view(torch.uint8)
    assert int((found != wanted).sum()) <= wanted.numel() // 500
    if "kv_params" in expected:
        check(out["kv_params"], expected["kv_params"].double(), 2e-3)
    rows = expected["kv_cache"][..., 0].numel()
    for some in torch.arange(rows, device=found.device).split(ROWS_AT_ONCE):
        values, exact = decoded(out, some), decoded(expected, some)
        assert torch.equal(values.isnan(), exact.isnan())
        close = (values - exact).abs() <= step_of(expected, some, exact)
        assert bool(close[~exact.isnan()].all())


def step_of(arguments: dict[str, Any], rows: Tensor, exact: Tensor) -> Tensor:
    """The distance [N, D] or [N, 1] of neighbours in a cache's format."""
    if "kv_params" not in arguments:
        return exact.abs() * torch.finfo(arguments["kv_cache"].dtype).eps + 2**-9
    return 1.01 * arguments["kv_params"].double().flatten(0, -2)[rows, :1]


def decoded(arguments: dict[str, Any], rows: Tensor) -> Tensor:
    """Some rows [N, D] of a cache's keys and values in float64."""
    cache, size = arguments["kv_cache"], arguments["q"].shape[2]
    return Rows(cache, arguments.get("kv_params"), size).read(rows, torch.float64)


def compare(op: Op[..., Any], implementation: Any, case: Case, device: torch.device) -> None:
    torch.manual_seed(zlib.crc32(case.name.encode()))
    arguments = case.make(device)
    wide, own = widened(arguments), copied(arguments)
    expected = run(op.reference, op, wide)
    outputs = run(implementation, op, own)
    for out, reference in zip(outputs, expected, strict=True):
        check(out, reference, case.tolerance)
    if {"q", "kv_cache"} <= own.keys() and is_stored(own["kv_cache"]):
        check_stored(own, wide)


@pytest.mark.parametrize(("op", "case"), EVERY_CASE)
def test_reference_rounds_once(op: Op[..., Any], case: Case) -> None:
    if case.size is not Size.SMALL or INTERPRETED:
        pytest.skip("small cases, once")
    compare(op, op.reference, case, torch.device("cpu"))


@pytest.mark.parametrize(("op", "case"), EVERY_CASE)
def test_kernel_in_the_interpreter(op: Op[..., Any], case: Case) -> None:
    if case.size is not Size.SMALL or not INTERPRETED:
        pytest.skip("small cases, run by test_interpreter.py")
    dots = "attention", "index_blocks", "index_tokens"
    if op.name.endswith(dots) and case.name.startswith("bf16"):
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16 in a dot")
    compare(op, op.triton, case, torch.device("cpu"))


@pytest.fixture
def no_second_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that cannot be built fails the test, and no other one computes its case."""
    monkeypatch.setattr("penstock_kernels.op.cannot_build", lambda _error: False)


@pytest.mark.gpu
@pytest.mark.usefixtures("no_second_choice")
@pytest.mark.parametrize(("op", "case"), EVERY_CASE)
def test_kernel_on_the_device(op: Op[..., Any], case: Case) -> None:
    compare(op, op.triton, case, torch.device("cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "case"), BENCH_CASES)
def test_repeated_launches_give_equal_bits(op: Op[..., Any], case: Case) -> None:
    """Of full size: a kernel that reads shared memory too early or too late differs now and then.

    Caches get the same keys and values each time. What else is changed is copied before.
    """
    torch.manual_seed(zlib.crc32(case.name.encode()))
    arguments = case.make(torch.device("cuda"))
    changed = {name for name in op.mutates if name in arguments and not name.startswith("kv_")}

    def launched() -> list[Tensor]:
        own = {n: x.clone() if n in changed else x for n, x in arguments.items()}
        return [out.contiguous().view(torch.uint8) for out in run(op.triton, op, own)]

    first = [out.clone() for out in launched()]
    for _ in range(LAUNCHES):
        for out, expected in zip(launched(), first, strict=True):
            assert torch.equal(out, expected)

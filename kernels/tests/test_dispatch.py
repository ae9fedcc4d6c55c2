"""How an implementation is chosen, and what the public functions refuse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import penstock_kernels
import pytest
import torch
from penstock_kernels import unbuildable
from penstock_kernels.op import OPS, Op, cannot_build
from triton.runtime.errors import PTXASError


def test_an_op_needs_a_reference() -> None:
    with pytest.raises(TypeError, match="needs a reference"):
        Op("nothing", None)  # type: ignore[arg-type]
    assert "nothing" not in OPS


def test_every_public_op_is_registered() -> None:
    assert set(OPS) == set(penstock_kernels.__all__) - {"use"}


def test_the_device_selects_the_implementation_unless_one_is_forced() -> None:
    op, tensor = OPS["act_mul"], torch.ones(1, 2, dtype=torch.float64)
    assert op.on(tensor) is op.reference
    with penstock_kernels.use("triton"):
        assert op.on(tensor) is op.triton
        with penstock_kernels.use("reference"):
            assert op.on(tensor) is op.reference
    assert op.on(tensor) is op.reference


def test_a_host_kernel_is_for_its_dtypes() -> None:
    op = Op("nothing", nothing)
    try:
        op.provide((torch.float32,), nothing_faster)
        assert op.on(torch.ones(1)) is nothing_faster
        assert op.on(torch.ones(1).double()) is nothing
        with penstock_kernels.use("reference"):
            assert op.on(torch.ones(1)) is nothing
    finally:
        del OPS["nothing"]


def nothing() -> None: ...


def nothing_faster() -> None: ...


class OnDevice(torch.Tensor):
    """A CPU tensor that passes for one on a GPU."""

    is_cuda = True


def no_assembler() -> None:
    raise PTXASError("ptxas: unknown target sm_999")


def no_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def broken_pass() -> None:
    """What a failing compiler pass looks like: a RuntimeError from within Triton's compiler."""
    namespace = {"__name__": "triton.compiler.compiler"}
    exec("def compile(): raise RuntimeError('PassManager::run failed')", namespace)
    namespace["compile"]()


@pytest.mark.parametrize(
    ("text", "is_so"),
    [
        ("Triton Error [CUDA]: out of memory", False),
        ("Triton Error [CUDA]: an illegal memory access was encountered", False),
        ("Triton Error [CUDA]: device kernel image is invalid", True),
        ("PassManager::run failed", True),
    ],
)
def test_what_the_driver_says_of_loading_a_kernel(text: str, is_so: bool) -> None:
    """A lack of memory passes, and an op that gave way on one rank alone would differ there."""
    namespace = {"__name__": "triton.compiler.compiler", "error": RuntimeError(text)}
    exec("def load(): raise error", namespace)
    with pytest.raises(RuntimeError) as raised:
        namespace["load"]()  # type: ignore[operator]
    assert cannot_build(raised.value) is is_so


@pytest.fixture
def op() -> Iterator[Op[..., object]]:
    """An op of its own, gone afterwards."""

    def doubled(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    yield Op("doubled", doubled, without="twice as long")
    del OPS["doubled"]


@pytest.mark.parametrize("failure", [no_assembler, broken_pass])
def test_a_kernel_that_does_not_compile_falls_back_to_torch(
    op: Op[..., object], failure: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.ones(2).as_subclass(OnDevice)
    calls = []

    def kernel(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        failure()
        return x

    op._triton = kernel
    for _ in range(3):
        assert op.on(x)(x).tolist() == [2, 2]
    assert len(calls) == 1
    (record,) = caplog.records
    assert "kernel of doubled" in record.message and "twice as long" in record.message


def test_a_kernel_that_does_not_compile_for_one_size_serves_the_others(
    op: Op[..., object], caplog: pytest.LogCaptureFixture
) -> None:
    tried = []

    def kernel(x: torch.Tensor) -> str:
        tried.append(tuple(x.shape))
        if x.shape[1] == 3 or x.dtype is torch.float64:
            no_assembler()
        return "by the kernel"

    def run(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> object:
        x = torch.ones(rows, columns, dtype=dtype).as_subclass(OnDevice)
        return op.on(x)(x)

    op._triton = kernel
    assert run(1, 2) == "by the kernel"
    for rows in (1, 4, 2):  # rows are not what it is compiled for
        assert isinstance(run(rows, 3), torch.Tensor)
    assert isinstance(run(1, 2, torch.float64), torch.Tensor)
    assert run(5, 2) == "by the kernel"
    assert tried == [(1, 2), (1, 3), (1, 2), (5, 2)]
    assert len(caplog.records) == 1


def test_a_kernel_that_compiles_for_nothing_is_given_up(op: Op[..., object]) -> None:
    tried = []

    def kernel(x: torch.Tensor) -> None:
        tried.append(x)
        no_assembler()

    op._triton = kernel
    for columns in range(20):
        x = torch.ones(2, columns).as_subclass(OnDevice)
        assert op.on(x)(x).tolist() == [[2] * columns] * 2
    assert len(tried) == unbuildable.MOST


def test_other_failures_of_a_kernel_are_not_hidden(op: Op[..., object]) -> None:
    x = torch.ones(2).as_subclass(OnDevice)
    op._triton = lambda _: no_memory()
    with pytest.raises(torch.OutOfMemoryError):
        op.on(x)(x)
    with penstock_kernels.use("triton"), pytest.raises(PTXASError):
        op._triton = lambda _: no_assembler()
        op.on(x)(x)


def test_importing_needs_no_triton() -> None:
    program = "import penstock_kernels, sys; assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_arguments_that_do_not_fit_are_named() -> None:
    x = torch.ones(2, 8)
    with pytest.raises(ValueError, match=r"weight has shape \(7,\); expected \(8,\)"):
        penstock_kernels.rms_norm(x, torch.ones(7), 1e-5)
    with pytest.raises(ValueError, match=r"residual is torch.float64"):
        penstock_kernels.rms_norm(x, torch.ones(8), 1e-5, x.double())
    with pytest.raises(ValueError, match="strides"):
        penstock_kernels.act_mul(x.t())
    with pytest.raises(ValueError, match="expected"):
        penstock_kernels.act_mul(torch.ones(2, 7))
    with pytest.raises(ValueError, match=r"limit is -1\.0; expected at least 0"):
        penstock_kernels.act_mul(torch.ones(2, 8), "silu", -1.0)
    with pytest.raises(ValueError, match=r"weight has shape \(3, 7\); expected \(3, 8\)"):
        penstock_kernels.linear(x, torch.ones(3, 7))
    with pytest.raises(ValueError, match="weight has 3 rows"):
        penstock_kernels.norm_linear(x, None, torch.ones(8), 1e-5, torch.ones(3, 8), gated=True)
    cache = torch.ones(4, 2, 3, 4, 8)
    one = torch.ones(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="multiple of 3"):
        q, k, tables = torch.ones(1, 4, 8), torch.ones(1, 3, 8), one[:, None]
        penstock_kernels.paged_prefill_attention(
            q, cache, tables, one, one.repeat(2), one, 1.0, max_query=1
        )
    with pytest.raises(ValueError, match=r"out has shape \(1, 4, 8\)"):
        penstock_kernels.paged_decode_attention(
            q[:, :3], k, k, torch.ones(1, 8), one, one, cache, tables, one, one, 1.0, 0, q
        )
    with pytest.raises(ValueError, match="kv_cache has shape"):
        penstock_kernels.copy_blocks(cache.transpose(0, 3), one, one)
    with pytest.raises(ValueError, match=r"top_k is torch\.int64"):
        slots = torch.arange(2)
        options = torch.ones(2), torch.ones(2).long(), torch.ones(2), slots, slots
        penstock_kernels.sample(x, slots, *options)

"""How caches of fewer bits store a vector: bounds of the error, and vectors that have no range."""

from __future__ import annotations

import pytest
import torch
from penstock_kernels import copy_blocks, paged_prefill_attention, rope_kv_write
from penstock_kernels.case import FP8_KV, Heads, paged, stored
from penstock_kernels.kv_quantization import Rows, params_of, quantized, saturated
from penstock_kernels.op import OPS
from penstock_kernels.paged_decode_attention.cases import decode_arguments
from torch import Tensor

CPU = torch.device("cpu")
BITS = pytest.mark.parametrize("bits", [8, 4])


def restored(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """x [N, D] as a cache gives it back, and its scales [N, 1], in float64."""
    codes, params = quantized(x, bits)
    shape = (1, 2, 1, len(x) // 2, -1)
    rows = Rows(codes.view(shape), params.view(shape), x.shape[1])
    return rows.read(torch.arange(len(x)), torch.float64), params[:, :1].double()


@BITS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(("spread", "offset"), [(1, 0), (30, 0), (1e-3, 0), (1, 50), (200, -9000)])
def test_the_error_is_half_a_scale_and_the_rounding_of_parameters(
    bits: int, dtype: torch.dtype, spread: float, offset: float
) -> None:
    torch.manual_seed(3)
    x = (spread * torch.randn(64, 48) + offset).to(dtype)
    wide = x if dtype == torch.float64 else x.float()
    back, scale = restored(wide, bits)
    low, high = wide.double().aminmax(dim=1, keepdim=True)
    levels = 2**bits - 1
    half_ulp = 2.0**-11  # of float16, relative; 2 ** -25 at least
    zero_error = low.abs() * half_ulp + 2**-25
    scale_error = (high - low + zero_error) / levels * half_ulp + 2**-25
    bound = scale / 2 + zero_error + levels * scale_error
    assert bool(((back - wide.double()).abs() <= bound * (1 + 1e-6)).all())


@BITS
@pytest.mark.parametrize("value", [0.0, 1.0, -3.14159, 1e-7, 6e4])
def test_equal_elements_are_stored_as_their_zero(bits: int, value: float) -> None:
    """Not as the NaN of 0 / 0."""
    back, scale = restored(torch.full((2, 32), value), bits)
    assert scale.flatten().tolist() == [1.0, 1.0]
    assert torch.equal(back, torch.full_like(back, float(torch.tensor(value).half())))


@BITS
def test_outliers_saturate(bits: int) -> None:
    x = torch.tensor([[-1e30, 1.0, 2.0, 1e30], [-torch.inf, 0.0, 1.0, torch.inf]])
    back, _ = restored(x, bits)
    assert bool(back.isfinite().all())
    assert bool((back[:, 0] == -65504).all())


@pytest.mark.parametrize("kind", FP8_KV.values(), ids=str)
def test_fp8_saturates_and_is_a_cast_otherwise(kind: torch.dtype) -> None:
    most = torch.finfo(kind).max
    x = torch.tensor([1e9, -1e9, torch.inf, -torch.inf, 0.3, -1.7, most, 0.0])
    expected = torch.tensor([most, -most, most, -most, 0.0, 0.0, most, 0.0])
    expected[4:6] = x[4:6].to(kind).float()
    assert torch.equal(saturated(x, kind).float(), expected)


def test_half_levels_round_to_even() -> None:
    """Of scale 1 and zero 0: codes of 0.5, 1.5, 2.5, 3.5."""
    codes, params = quantized(torch.tensor([[0.0, 0.5, 1.5, 2.5, 3.5, 255.0]]), 8)
    assert params.tolist() == [[1.0, 0.0]]
    assert codes.tolist() == [[0, 0, 2, 2, 4, 255]]


def test_four_bits_pair_the_halves_of_a_head() -> None:
    codes, _ = quantized(torch.arange(16.0)[None], 4)
    assert codes.tolist() == [[i | i + 8 << 4 for i in range(8)]]


def test_parameters_do_not_depend_on_neighbours() -> None:
    torch.manual_seed(4)
    x = torch.randn(5, 32)
    together = params_of(x, 255)
    assert all(
        torch.equal(params_of(row, 255), both) for row, both in zip(x, together, strict=True)
    )


@pytest.mark.parametrize("kv", ["int8", "int4", "e4m3"])
def test_copies_of_blocks_are_read_alike(kv: str) -> None:
    """Codes and parameters are copied by a call each; foreign blocks are NaN throughout."""
    torch.manual_seed(5)
    heads = Heads(6, 2, 16, 4)
    case = stored(paged([9, 14], heads, torch.float32, CPU, spare=7), kv)
    rest = {
        "q": torch.randn(4, heads.query, heads.size),
        "query_start": torch.tensor([0, 1, 4], dtype=torch.int32),
        "scale": 0.3,
        "max_query": 3,
    }
    expected = paged_prefill_attention(**case, **rest)
    used = case["block_tables"][case["block_tables"] < len(case["kv_cache"])].unique()
    free = torch.tensor(
        [b for b in range(len(case["kv_cache"])) if b not in used], dtype=used.dtype
    )
    for name in ("kv_cache", "kv_params"):
        if name in case:
            copy_blocks(case[name], used, free[: len(used)])
            bits = case[name].view(torch.uint8) if name == "kv_cache" else case[name]
            bits[used.long()] = 255
    moved = torch.full((len(case["kv_cache"]) + 1,), 1 << 28, dtype=torch.int32)
    moved[used.long()] = free[: len(used)]
    tables = case["block_tables"].clamp(max=len(moved) - 1).long()
    out = paged_prefill_attention(**{**case, "block_tables": moved[tables]}, **rest)
    assert torch.equal(out, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("kv", ["int8", "int4"])
def test_ranges_of_values_may_differ_by_orders_of_magnitude(kv: str) -> None:
    """Weights times scales are an operand in float16, which holds few of them."""
    torch.manual_seed(6)
    device = torch.device("cuda")
    case = decode_arguments(Heads(32, 8, 128, 16), [900, 70, 1], torch.bfloat16, device, kv=kv)
    params = case["kv_params"]
    powers = torch.randint(-12, 12, params.shape[:-1], device=device).float().exp2()
    params[:, 1] = (params[:, 1].float() * powers[:, 1, ..., None]).half()
    op = OPS["paged_decode_attention"]
    floats = {name: x.double() for name, x in case.items() if x.is_floating_point()}
    copies = {name: x.clone() for name, x in case.items()}
    exact = op.reference(**{**copies, **floats, "kv_params": params.clone()}, scale=0.1)
    out = op.triton(**case, scale=0.1)
    error = (out.double() - exact).norm(dim=-1) / exact.norm(dim=-1)
    assert float(error.max()) < 1.5e-2


def test_arguments_that_do_not_fit_are_refused() -> None:
    q, k = torch.zeros(1, 2, 16), torch.zeros(1, 1, 16)
    angles, place = torch.zeros(4, 16), torch.zeros(1, dtype=torch.int32)
    cache = torch.zeros(3, 2, 1, 4, 16, dtype=torch.uint8)
    params = torch.zeros(3, 2, 1, 4, 2, dtype=torch.float16)
    for stored_in, message in [
        ((cache, None), "torch.uint8 without kv_params; expected floats"),
        ((cache[..., :9].contiguous(), params), "rows of 9 torch.uint8 for heads of 16"),
        ((cache.float(), params), "expected 16 or 8 torch.uint8"),
        ((cache, params.float()), "kv_params is torch.float32; expected torch.float16"),
        ((cache, params[:2]), "kv_params has shape"),
        ((cache, params.mT.contiguous().mT), r"kv_params has shape .* and strides"),
    ]:
        kv_cache, kv_params = stored_in
        with pytest.raises(ValueError, match=message):
            rope_kv_write(q, k, k, angles, place, place, kv_cache, kv_params=kv_params)

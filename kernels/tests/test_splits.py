"""What splits of prefill attention leave is added up by what each row's own tile of rows used.

On a CUDA device, or in Triton's interpreter in a process of its own: see test_interpreter.py.
"""

from __future__ import annotations

import os

import pytest
import torch

# Gluon is an experiment of Triton's: not every version has what is imported.
splits = pytest.importorskip(
    "penstock_kernels.paged_prefill_attention.splits", exc_type=ImportError
)

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HERE = pytest.mark.skipif(not INTERPRETED, reason="run by test_interpreter.py")
DEVICES = [pytest.param("cpu", marks=HERE), pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 2), (6, 2), (7, 1), (17, 1)])
@pytest.mark.parametrize("number", [4, 8])
def test_rows_are_added_up_by_their_own_splits(
    device: str, heads: int, kv_heads: int, number: int
) -> None:
    tokens, size = 9, 64
    q = torch.zeros(tokens, heads, size, dtype=torch.bfloat16, device=device)
    scratch = parts, peaks, used = splits.scratch_of(q, number)
    used.copy_(torch.randint(1, number + 1, (tokens, heads)))
    exists = torch.arange(number, device=device) < used[:, :, None]
    some, weight = torch.randn_like(parts), torch.rand_like(peaks)
    parts.copy_(torch.where(exists[..., None], some, torch.nan))  # nobody wrote the others
    peaks.copy_(torch.where(exists[..., None], weight, torch.nan))
    out = torch.full_like(q, 7)
    start = torch.tensor([2, 5, tokens - 1], dtype=torch.int32, device=device)
    splits.add_up(out, scratch, start, kv_heads, number)

    scale = torch.where(exists, peaks[..., 0].exp2(), 0)
    total = torch.where(exists, scale * peaks[..., 1], 0).sum(-1)
    sums = torch.where(exists[..., None], scale[..., None] * parts, 0).sum(-2)
    expected = (sums / total[..., None]).to(out.dtype)
    alone = torch.ones(tokens, heads, dtype=torch.bool, device=device)
    alone[2 : tokens - 1] = used[2 : tokens - 1] == 1
    assert bool((out[alone] == 7).all()), "rows that were not split are left as they are"
    torch.testing.assert_close(out[~alone], expected[~alone], atol=2e-2, rtol=2e-2)

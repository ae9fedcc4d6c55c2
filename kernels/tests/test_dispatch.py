"""How an implementation is chosen, and what the public functions refuse."""

from __future__ import annotations

import subprocess
import sys

import penstock_kernels
import pytest
import torch
from penstock_kernels.op import OPS, Op


def test_an_op_needs_a_reference() -> None:
    with pytest.raises(TypeError, match="needs a reference"):
        Op("nothing", None)  # type: ignore[arg-type]
    assert "nothing" not in OPS


def test_every_public_op_is_registered() -> None:
    assert set(OPS) == set(penstock_kernels.__all__) - {"use"}


def test_the_device_chooses_unless_told() -> None:
    op, tensor = OPS["silu_mul"], torch.ones(1, 2)
    assert op.on(tensor) is op.reference
    with penstock_kernels.use("triton"):
        assert op.on(tensor) is op.triton
        with penstock_kernels.use("reference"):
            assert op.on(tensor) is op.reference
    assert op.on(tensor) is op.reference


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
        penstock_kernels.silu_mul(x.t())
    with pytest.raises(ValueError, match="expected"):
        penstock_kernels.silu_mul(torch.ones(2, 7))
    cache = torch.ones(4, 2, 3, 4, 8)
    one = torch.ones(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="multiple of 3"):
        q, tables = torch.ones(1, 4, 8), one[:, None]
        penstock_kernels.paged_decode_attention(q, cache, tables, one, one, 1.0)
    with pytest.raises(ValueError, match="kv_cache has shape"):
        penstock_kernels.copy_blocks(cache.transpose(0, 3), one, one)
    with pytest.raises(ValueError, match=r"top_k is torch\.int64"):
        options = torch.ones(2), torch.ones(2).long(), torch.ones(2), one, one
        penstock_kernels.sample(x, *options)

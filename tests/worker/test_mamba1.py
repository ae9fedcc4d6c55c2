"""Mamba-1 in quantized checkpoints: what yields B, C and the steps stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints import CASES, write
from quantized import assert_equal_model, assert_equal_ranks, quantized
from test_experts import FORMATS

# Two ranks have inputs in whole groups of 128.
SIZES = {"hidden_size": 256, "intermediate_size": 256, "vocab_size": 512}
RANKS = dict.fromkeys(("jamba", "jamba-dense", "zamba-list"), "mamba_dt_rank")
RANKS |= {"falcon_mamba": "time_step_rank"}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", RANKS)
@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_weight_formats(tmp_path: Path, check: Callable[..., None], case: str, name: str) -> None:
    quantize, config = FORMATS[name]
    path = write(tmp_path / "plain", **{**CASES[case], **SIZES, RANKS[case]: 24})
    check(*quantized(path, tmp_path, quantize, config, r"lm_head|\.(dt|x)_proj"))

"""RG-LRU in quantized checkpoints: what yields its gates stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints import CASES, write
from quantized import assert_equal_model, assert_equal_ranks, quantized
from test_experts import FORMATS

# Two ranks have inputs in whole groups of 128.
SIZES = {"hidden_size": 256, "intermediate_size": 512, "lru_width": 256, "vocab_size": 512}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", ["recurrent_gemma", "recurrent_gemma-plain"])
@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_weight_formats(tmp_path: Path, check: Callable[..., None], case: str, name: str) -> None:
    quantize, config = FORMATS[name]
    path = write(tmp_path / "plain", **{**CASES[case], **SIZES})
    check(*quantized(path, tmp_path, quantize, config))

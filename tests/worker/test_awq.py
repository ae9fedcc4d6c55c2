"""AWQ checkpoints, written here from AutoAWQ's documented layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import checkpoint_maker
from local import LocalWorker, Refused
from quantized import (
    UP,
    Quantize,
    assert_equal_model,
    assert_equal_ranks,
    changed,
    put,
    quantized,
)
from test_gptq import INTERLEAVED, group_index, packed, rounded
from torch import Tensor


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))


def awq(group: int, sym: bool = False) -> Quantize:
    """AutoAWQ's packing: field i of a word has output ORDER[i] of eight."""

    def quantize(matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        inputs = matrix.shape[1]
        codes, scales, zeros, exact = rounded(matrix, group_index(inputs, group, False), 4, sym)
        tensors = {"qweight": awq_words(codes.t()), "qzeros": awq_words(zeros)}
        return {**tensors, "scales": scales.half()}, exact

    return quantize


def awq_words(codes: Tensor) -> Tensor:
    eights = codes.reshape(len(codes), -1, 8)[:, :, list(INTERLEAVED)]
    return packed(eights.reshape(codes.shape), 4, 1)


AWQ = {
    "transformers": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"},
    "rows": {"quant_method": "awq", "bits": 4, "group_size": -1, "zero_point": True},
    "AutoAWQ": {"quant_method": "awq", "w_bit": 4, "q_group_size": 32, "version": "GEMM"},
    "symmetric": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": False},
    "kept": {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 32,
        "modules_to_not_convert": ["down_proj"],
    },
}


@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
@pytest.mark.parametrize("name", AWQ)
def test_awq(
    checkpoint: Callable[[str], Path], check: Callable[..., None], name: str, tmp_path: Path
) -> None:
    group: Any = AWQ[name].get("group_size", 32)
    kept = "lm_head|down_proj" if name == "kept" else "lm_head"
    quantize = awq(group, sym=name == "symmetric")
    check(*quantized(checkpoint("llama31"), tmp_path, quantize, AWQ[name], kept))


def test_zero_points_that_are_not_the_middle_of_symmetric_codes(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path, _ = quantized(checkpoint("llama31"), tmp_path, awq(32, sym=True), AWQ["symmetric"])
    text = rf"tensor {UP}.qzeros has zero points of 0, .* makes all of them 8; the file is damaged"
    with pytest.raises(Refused, match=text):
        LocalWorker().load(changed(path, put("qzeros", torch.zeros_like)))

"""Weight formats of models that transformers' own module computes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from driver import Driver
from library_types import write
from local import LocalWorker, Refused
from quantized import assert_equal_model, changed, quantized
from test_awq import AWQ, awq
from test_compressed_tensors import FORMATS as COMPRESSED
from test_compressed_tensors import by_library, config_of
from test_gptq import GPTQ, gptq, settings
from test_mxfp8 import FORMATS as MXFP8
from test_quantize_while_loading import EXACT, made
from together import in_three_ways
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaMLP

LIBRARY = {"model_backend": "transformers"}
# The library has the experts of a layer in one tensor, which stays as it is.
FLOATS = r"lm_head|\.experts\."
GROUPS = {128: 128, 64: 64, 96: 32, 32: 32}


@pytest.mark.parametrize("quantize", EXACT)
@pytest.mark.parametrize("case", ["llama-biases", "phi3-window", "qwen3-moe"])
def test_tokens_are_those_of_the_quantized_weights(
    checkpoint: Callable[[str], Path], quantize: str, case: str, tmp_path: Path
) -> None:
    pair = made(checkpoint(case), tmp_path, quantize, GROUPS.__getitem__, FLOATS)
    # torch multiplies experts in at most 32 bits.
    assert_equal_model(*pair, quantize=quantize, dtype="float32", **LIBRARY)


@pytest.mark.parametrize("name", ["4-bit", "4-bit, order, asymmetric", "8-bit"])
def test_gptq(checkpoint: Callable[[str], Path], name: str, tmp_path: Path) -> None:
    config = settings(**GPTQ[name])
    assert_equal_model(*quantized(checkpoint("llama31"), tmp_path, gptq(config), config), **LIBRARY)


@pytest.mark.parametrize(("name", "kept"), [("AutoAWQ", ""), ("kept", "|down_proj")])
def test_awq(checkpoint: Callable[[str], Path], name: str, kept: str, tmp_path: Path) -> None:
    pair = quantized(checkpoint("llama31"), tmp_path, awq(32), AWQ[name], f"lm_head{kept}")
    assert_equal_model(*pair, **LIBRARY)


@pytest.mark.parametrize("name", ["fp8-channel-dynamic", "nvfp4"])
def test_compressed_tensors(checkpoint: Callable[[str], Path], name: str, tmp_path: Path) -> None:
    made = by_library(*COMPRESSED[name]), config_of(*COMPRESSED[name])
    assert_equal_model(*quantized(checkpoint("llama31"), tmp_path, *made), **LIBRARY)


@pytest.mark.parametrize("name", ["modelopt", "fp8"])
def test_mxfp8(checkpoint: Callable[[str], Path], name: str, tmp_path: Path) -> None:
    assert_equal_model(*quantized(checkpoint("llama31"), tmp_path, *MXFP8[name]), **LIBRARY)


@pytest.mark.parametrize("model_type", ["beam", "hy_v3"])
def test_a_type_is_quantized(model_type: str, tmp_path: Path) -> None:
    """Its tokens are the same alone and beside others, and not those of its floats. Checkpoints of
    HunYuan name matrices otherwise than the library's module."""
    path = write(model_type, tmp_path)
    found, sizes = [], []
    for quantize in ("", "fp8"):
        worker = LocalWorker()
        loaded = worker.load(path, quantize=quantize, dtype="float32", **LIBRARY)
        sizes.append(loaded.memory.weights)
        alone, first, second = in_three_ways(Driver([worker], loaded))
        assert alone == first == second
        found.append(alone)
    assert found[0] != found[1]
    assert len(set(sizes)) == 1  # a CPU keeps matrices of floats


@pytest.mark.parametrize(
    ("model_type", "fields", "text"),
    [
        ("gpt2", {"quantize": "int4"}, "no linear layer of transformers' module can have a weight"),
        ("beam", {"quantize": "gptq"}, "--quantize gptq needs a checkpoint in that format"),
    ],
)
def test_what_cannot_have_a_format(
    model_type: str, fields: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=re.escape(text)):
        LocalWorker().load(write(model_type, tmp_path), **LIBRARY, **fields)


def test_a_module_that_reads_weights_itself(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(mlp: Any, x: Any) -> Any:
        return mlp.down_proj(functional.linear(x, mlp.gate_proj.weight))

    monkeypatch.setattr(LlamaMLP, "forward", forward)
    with pytest.raises(Refused, match="reads the weights of a linear layer itself"):
        LocalWorker().load(checkpoint("llama2"), quantize="int4", **LIBRARY)


@pytest.mark.parametrize("change", ["lacks", "unknown"])
def test_tensors_must_fit(checkpoint: Callable[[str], Path], change: str, tmp_path: Path) -> None:
    config = settings()
    path, _ = quantized(checkpoint("llama31"), tmp_path, gptq(config), config)
    name = "model.layers.0.mlp.up_proj"
    if change == "lacks":
        changed(path, lambda tensors: tensors.pop(f"{name}.scales"))
        text = f"the checkpoint lacks tensors: {name}.scales"
    else:
        changed(path, lambda tensors: tensors.update({f"{name}.more": torch.ones(3)}))
        text = f"the checkpoint has unknown tensors: {name}.more"
    with pytest.raises(Refused, match=re.escape(text)):
        LocalWorker().load(path, **LIBRARY)

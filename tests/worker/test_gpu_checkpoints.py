"""Quantized checkpoints on a GPU, which keeps codes: logits equal those of dequantized weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import prompt, reference, write
from driver import Driver, greedy
from local import LocalWorker
from quantized import WIDE, Quantize, assert_equal_model, quantized
from test_awq import AWQ, awq
from test_bitsandbytes import converted
from test_compressed_ints import FORMATS, by_library
from test_compressed_tensors import config_of
from test_eetq import CONFIG, eetq
from test_experts import FORMATS as EXPERT_FORMATS
from test_experts import quantized_experts
from test_fp8 import FORMATS as FP8
from test_gptq import gptq, marlin, settings
from test_mx import FORMATS as MX
from test_quantize_while_loading import EXACT, made

pytestmark = pytest.mark.gpu
ON_GPU: dict[str, Any] = {"device": "cuda", "dtype": "float32", "kv_memory_bytes": 64 << 20}
ORDER = settings(desc_act=True, sym=False)
HEAD = settings(lm_head=True, bits=8)
MARLIN: dict[str, Any] = {"quant_method": "marlin", "bits": 4, "group_size": 128}
STORED: dict[str, tuple[Quantize, dict[str, Any], str]] = {
    "gptq": (gptq(settings()), settings(), "lm_head"),
    "gptq, order": (gptq(ORDER), ORDER, "lm_head"),
    "gptq, 8 bits, head": (gptq(HEAD), HEAD, "nothing"),
    "awq": (awq(32), AWQ["transformers"], "lm_head"),
    "marlin": (marlin(128), MARLIN, "lm_head"),
    "eetq": (eetq, CONFIG, "lm_head"),
    "w4a16": (by_library(*FORMATS["w4a16"]), config_of(*FORMATS["w4a16"]), "lm_head"),
    "w8a8": (by_library(*FORMATS["w8a8-dynamic"]), config_of(*FORMATS["w8a8-dynamic"]), "lm_head"),
    **{name: (*FP8[name], "lm_head") for name in ("block-128", "block-32", "tensor-static")},
    **{name: (*form, "lm_head") for name, form in MX.items()},
}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("wide") / "model", **WIDE)


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    return quantized_experts(tmp_path_factory.mktemp("experts"))


@pytest.mark.parametrize("name", STORED)
def test_checkpoints(wide: Path, name: str, tmp_path: Path) -> None:
    quantize, config, kept = STORED[name]
    assert_equal_model(*quantized(wide, tmp_path, quantize, config, kept), 0.05, **ON_GPU)


@pytest.mark.parametrize("name", [*EXPERT_FORMATS, "gpt-oss"])
def test_experts(experts: dict[str, tuple[Path, Path]], name: str) -> None:
    """Where a router's logits are nearly equal, a rounding may choose another expert."""
    path, exact = experts[name]
    worker, prompts = LocalWorker(), [prompt(40 + i, seed=i) for i in range(8)]
    driver = Driver([worker], worker.load(path, **ON_GPU))  # type: ignore[list-item]
    logits, model, near = worker.record_logits(), reference(exact, torch.float64), 0
    for ids in prompts:
        sequence = greedy(ids, 1)
        driver.enter(sequence)
        driver.finish([sequence])
        with torch.inference_mode():
            expected = model(torch.tensor([ids])).logits[0, -1]
        near += int((logits[-1][0].cpu().double() - expected).abs().max() < 0.05)
    driver.stream.close()
    assert near >= 6


@pytest.mark.parametrize("quantize", EXACT)
def test_quantized_while_loading(wide: Path, quantize: str, tmp_path: Path) -> None:
    group: Callable[[int], int] = lambda inputs: 128  # noqa: E731
    pair = made(wide, tmp_path, quantize, group)
    assert_equal_model(*pair, 0.05, quantize=quantize, **ON_GPU)


@pytest.mark.parametrize("quantize", ["bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4"])
def test_the_librarys_codes(wide: Path, quantize: str, tmp_path: Path) -> None:
    pair = quantized(wide, tmp_path, converted(quantize), None)
    assert_equal_model(*pair, 0.05, quantize=quantize, **ON_GPU)

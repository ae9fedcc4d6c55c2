"""`penstock quantize` of models that take images: their text is quantized, the rest stays."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import CASES, SHAPE, prompt
from image_checkpoints import older, saved, written
from penstock.config import read_config
from penstock.quantize import Job, Options, quantize
from ranks import LENGTH
from test_quantize import BROOK, dequantized, logits, stored
from torch import Tensor
from transformers import (
    AutoModelForImageTextToText,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
)

# transformers' class with images caps no logits.
SIZES = {"intermediate_size": 128, "vocab_size": 4096, "final_logit_softcapping": None}
VISION: dict[str, dict[str, Any]] = {
    "gemma3": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "image_size": 16}
    | {"num_attention_heads": 2, "patch_size": 4},
    "qwen3_5": {"hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 64, "depth": 1}
    | {"num_heads": 2, "patch_size": 4, "spatial_merge_size": 1, "num_position_embeddings": 16},
}
CLASSES: dict[str, tuple[Any, Any]] = {
    "gemma3": (Gemma3ForConditionalGeneration, Gemma3Config),
    "qwen3_5": (Qwen3_5ForConditionalGeneration, Qwen3_5Config),
}
KINDS = ["gemma3", "qwen3_5", "qwen2.5-vl", "qwen2.5-vl, older", "qwen3-vl", "glm4v"]


def write(path: Path, kind: str) -> Path:
    """A tiny checkpoint with brook's tokenizer."""
    name, _, age = kind.partition(", ")
    if name in CLASSES:
        cls, config = CLASSES[name]
        text = {**SHAPE, **CASES[name], **SIZES}
        saved(
            path, cls, config(text_config=text, vision_config=VISION[name], mm_tokens_per_image=4)
        )
    else:
        written(path, name, **SIZES)
    if age:
        older(path)
    shutil.copy(BROOK / "tokenizer.json", path)
    return path


def of_images(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """By the names that older checkpoints have; what is written has the newer ones."""
    return {
        name.removeprefix("model."): tensor
        for name, tensor in tensors.items()
        if "vis" in name or "multi_modal" in name
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["awq", "gptq", "fp8"])
def test_text_is_quantized_alone(tmp_path: Path, texts: Path, kind: str, method: str) -> None:
    folder, out = write(tmp_path / "model", kind), tmp_path / "out"
    options = Options(method) if method == "fp8" else Options(method, group=32)
    report = quantize(Job(folder, out, options, texts))
    exact = logits(dequantized(folder, out, options, tmp_path / "exact"))
    torch.testing.assert_close(logits(out), exact, rtol=0, atol=1e-5)
    assert 0 < max(report.errors.values()) < 0.03
    before, after = of_images(stored(folder)), of_images(stored(out))
    assert before.keys() == after.keys() and len(before) > 8
    assert all(torch.equal(before[name], after[name]) for name in before)
    config = read_config(out)
    assert config["vision_config"] == read_config(folder)["vision_config"]
    kept = json.dumps(config["quantization_config"])
    assert ("vision_tower" if kind == "gemma3" else "visual") in kept


@pytest.mark.parametrize("kind", ["gemma3", "qwen3_5", "qwen3-vl"])
def test_transformers_reads_fp8_as_it_stands(tmp_path: Path, texts: Path, kind: str) -> None:
    folder, out = write(tmp_path / "model", kind), tmp_path / "out"
    quantize(Job(folder, out, Options("fp8"), texts))
    raw = json.loads((out / "config.json").read_text())
    # The library rounds activations where the checkpoint allows it.
    raw["quantization_config"]["config_groups"]["group_0"]["input_activations"] = None
    (out / "config.json").write_text(json.dumps(raw))
    theirs = AutoModelForImageTextToText.from_pretrained(
        out, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        found = theirs(torch.tensor([prompt(LENGTH)])).logits[0, -1:]
    torch.testing.assert_close(found.double(), logits(out), rtol=0, atol=1e-4)
    images = [
        module
        for name, module in theirs.named_modules()
        if "vis" in name and isinstance(module, torch.nn.Linear)
    ]
    assert images and not any(hasattr(module, "weight_scale") for module in images)

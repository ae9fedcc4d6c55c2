"""Models that transformers computes, on a GPU: as exact as the library, and captured as graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import VOCAB, prompt, reference
from driver import Driver, Running, greedy
from library_types import write
from local import LocalWorker
from transformers import CONFIG_MAPPING

pytestmark = pytest.mark.gpu
TOLERANCE = 1.5  # as in test_gpu.py
GPU = {"device": "cuda", "dtype": "bfloat16", "kv_memory_bytes": 64 << 20}
TYPES = ("gpt_neox", "gpt2", "gpt_oss", "deepseek_v3", "mimo_v2_flash", "gemma4_text", "kolibri1")


def prefilled(path: Path, **settings: Any) -> tuple[list[Running], torch.Tensor]:
    """Sequences of some lengths, and the logits behind their prompts."""
    worker = LocalWorker()
    loaded = worker.load(path, model_backend="transformers", **{**GPU, **settings})
    driver = Driver([worker], loaded)
    logits = worker.record_logits()
    sequences = [greedy(prompt(70 + 7 * i, seed=i), 1) for i in range(8)]
    for sequence in sequences:
        driver.enter(sequence)
    driver.finish(sequences)
    driver.stream.close()
    return sequences, torch.cat(logits).cpu().float()


@pytest.mark.parametrize("model_type", TYPES)
def test_logits_are_as_exact_as_those_of_transformers(model_type: str, tmp_path: Path) -> None:
    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {model_type}")
    path = write(model_type, tmp_path)
    sequences, logits = prefilled(path)
    exact_model = reference(path, torch.float32)
    peer_model = reference(path, torch.bfloat16, "cuda")
    ours, theirs = [], []
    with torch.inference_mode():
        for row, sequence in zip(logits, sequences, strict=True):
            ids = torch.tensor([sequence.prompt])
            exact = exact_model(ids).logits[0, -1]
            peer = peer_model(ids.cuda()).logits[0, -1]
            ours.append((row[:VOCAB] - exact).abs().mean())
            theirs.append((peer.cpu().float() - exact).abs().mean())
    assert torch.stack(ours).mean() <= TOLERANCE * torch.stack(theirs).mean() + 1e-3


@pytest.mark.parametrize("quantize", ["int4", "fp8", "eetq"])
def test_quantized_logits_are_near_those_of_a_cpu(quantize: str, tmp_path: Path) -> None:
    """A CPU multiplies by the floats that the same codes stand for."""
    path = write("gpt_neox", tmp_path)
    cpu, gpu = (prefilled(path, device=name, quantize=quantize)[1] for name in ("cpu", "cuda"))
    assert (cpu - gpu).abs().mean() <= 0.06 * cpu.abs().mean()


@pytest.mark.parametrize(
    ("model_type", "quantize"),
    [("gpt_neox", ""), ("gpt2", ""), ("gpt_oss", ""), ("gpt_neox", "int4"), ("gpt_neox", "fp8")],
)
def test_graphs_of_the_module_do_not_change_tokens(
    model_type: str, quantize: str, tmp_path: Path
) -> None:
    """Batches that grow and shrink, as steps of several shapes."""
    worker = LocalWorker()
    path = write(model_type, tmp_path)
    loaded = worker.load(path, model_backend="transformers", quantize=quantize, **GPU)

    def tokens(graphs: Any) -> list[list[int]]:
        worker.runner.graphs = graphs
        driver = Driver([worker], loaded, worker.shard.epoch + 1)
        sequences = [greedy(prompt(10 + i, seed=i), 8 + 3 * i) for i in range(12)]
        for count, sequence in enumerate(sequences):
            driver.enter(sequence)
            driver.step(sequences[: count + 1])
        driver.finish(sequences)
        driver.stream.close()
        return [sequence.tokens for sequence in sequences]

    graphs = worker.runner.graphs
    eager = tokens(None)
    assert tokens(graphs) == eager
    assert any(shape.decodes > 1 for shape in graphs.captured)
    assert tokens(graphs) == eager

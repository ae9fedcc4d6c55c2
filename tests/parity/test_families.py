"""Every family and RoPE variant computes what transformers computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import CASES, generate, prompt, reference
from driver import Driver, Running, greedy, running
from local import LocalWorker
from penstock.models.llama import Qwen2
from transformers import AutoConfig


def run_alone(worker: LocalWorker, path: Path, sequence: Running, dtype: str) -> list[torch.Tensor]:
    """Runs one sequence to its end on a fresh worker; the logits of all its steps."""
    driver = Driver([worker], worker.load(path, dtype=dtype))
    logits = worker.record_logits()
    driver.enter(sequence)
    driver.finish([sequence])
    driver.stream.close()
    return logits


@pytest.mark.parametrize("case", CASES)
def test_logits_and_64_greedy_tokens(checkpoint: Callable[[str], Path], case: str) -> None:
    path = checkpoint(case)
    model = reference(path, torch.float64)
    ids = prompt(90)
    expected = generate(model, ids)
    sequence = greedy(ids)
    logits = run_alone(LocalWorker(), path, sequence, "float64")
    with torch.inference_mode():
        ours = torch.cat(logits)
        theirs = model(torch.tensor([ids + expected])).logits[0, len(ids) - 1 : -1]
    # transformers normalises and takes the softmax in float32, whatever the model's dtype.
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-4)
    assert sequence.tokens == expected
    chosen = theirs.log_softmax(-1).gather(1, torch.tensor(expected)[:, None])[:, 0]
    assert sequence.logprobs == pytest.approx(chosen.tolist(), abs=2e-4)


def test_two_ranks_add_biases_once(checkpoint: Callable[[str], Path]) -> None:
    """The biases of o_proj and down_proj, whose products are sums over the ranks."""
    path = checkpoint("llama-biases")
    model = reference(path, torch.float64)
    biases = [
        p
        for name, p in model.named_parameters()
        if name.endswith(("o_proj.bias", "down_proj.bias"))
    ]
    assert len(biases) == 2 * len(model.model.layers) and all(
        bias.abs().min() > 0 for bias in biases
    )
    ids = prompt(90)
    expected = generate(model, ids, 24)
    with torch.inference_mode():
        theirs = model(torch.tensor([ids + expected])).logits[0, len(ids) - 1 : -1]
    chosen = theirs.log_softmax(-1).gather(1, torch.tensor(expected)[:, None])[:, 0]
    for workers, loaded in running(path, 2, dtype="float64"):
        driver = Driver(workers, loaded)
        sequence = greedy(ids, 24)
        driver.enter(sequence)
        driver.finish([sequence])
        driver.stream.close()
        assert sequence.tokens == expected
        assert sequence.logprobs == pytest.approx(chosen.tolist(), abs=2e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-4), ("bfloat16", 0.5)])
def test_other_dtypes_of_the_cpu(
    checkpoint: Callable[[str], Path], dtype: str, tolerance: float
) -> None:
    path = checkpoint("llama31")
    ids = prompt(90)
    logits = run_alone(LocalWorker(), path, greedy(ids, 1), dtype)
    with torch.inference_mode():
        exact = reference(path, torch.float64)(torch.tensor([ids])).logits[0, -1]
    assert (logits[0][0].double() - exact).abs().max() < tolerance


def without_layer_types(path: Path, directory: Path, **fields: Any) -> Path:
    """The checkpoint as before transformers 4.53, which says only from where on layers slide."""
    for file in path.glob("*.safetensors"):
        (directory / file.name).symlink_to(file)
    config = json.loads((path / "config.json").read_text())
    assert config.pop("layer_types") == ["full_attention"] + 2 * ["sliding_attention"]
    (directory / "config.json").write_text(json.dumps({**config, **fields}))
    return directory


def test_qwen2s_first_sliding_layer(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """From max_window_layers alone; the prompt is longer than the window."""
    path = without_layer_types(checkpoint("qwen2-window"), tmp_path)
    model = reference(path, torch.float64)
    ids = prompt(90)
    sequence = greedy(ids, 8)
    logits = torch.cat(run_alone(LocalWorker(), path, sequence, "float64"))
    with torch.inference_mode():
        tokens = torch.tensor([ids + sequence.tokens])
        theirs = model(tokens).logits[0, len(ids) - 1 : -1]
    torch.testing.assert_close(logits, theirs, rtol=0, atol=2e-4)
    assert sequence.tokens == theirs.argmax(-1).tolist()


@pytest.mark.parametrize("first", [0, 1, 2, 3])
@pytest.mark.parametrize("slides", [True, False])
def test_qwen2s_windows(
    checkpoint: Callable[[str], Path], tmp_path: Path, first: int, slides: bool
) -> None:
    """Of each layer, as transformers reads the same file."""
    fields = {"max_window_layers": first, "use_sliding_window": slides}
    path = without_layer_types(checkpoint("qwen2-window"), tmp_path, **fields)
    kinds = AutoConfig.from_pretrained(path).layer_types
    expected = tuple(24 if kind == "sliding_attention" else 0 for kind in kinds)
    assert expected == tuple(24 if slides and layer >= first else 0 for layer in range(3))
    raw = json.loads((path / "config.json").read_text())
    assert Qwen2.read_config(raw).windows == expected


def test_legacy_rope_config_is_read(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """rope_theta and rope_scaling with `type`, as in checkpoints before transformers 5."""
    path = checkpoint("llama31")
    for file in path.glob("*.safetensors"):
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((path / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    rope["type"] = rope.pop("rope_type")
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_scaling": rope}))
    new, old = greedy(prompt(90)), greedy(prompt(90))
    run_alone(LocalWorker(), path, new, "float64")
    run_alone(LocalWorker(), tmp_path, old, "float64")
    assert new.tokens == old.tokens

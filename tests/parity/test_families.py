"""Every family and RoPE variant computes what transformers computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoints import CASES, generate, prompt, reference
from driver import Driver, Running, greedy, running
from local import LocalWorker


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


def test_two_ranks_add_a_bias_once(checkpoint: Callable[[str], Path]) -> None:
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


def test_the_older_spelling_of_rope(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
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

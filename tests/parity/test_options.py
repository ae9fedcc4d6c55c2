"""Options of the specification that no registered family has, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import generate, prompt, reference, write
from driver import Driver, greedy
from local import LocalWorker
from option_families import CASES, FAMILIES
from penstock.parallel import Group
from penstock.quant import Methods, Unquantized
from penstock.worker.startup import loader
from ranks import LENGTH, Threads, prefilled
from safetensors.torch import load_file

PLAIN = Methods(Unquantized(torch.float64, torch.device("cpu")))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("options")
    return {
        kind: write(directory / kind, model_type=kind, **fields) for kind, fields in CASES.items()
    }


@pytest.fixture(autouse=True)
def families(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker finds these families by their model_type."""
    monkeypatch.setattr(loader, "family", lambda raw: FAMILIES[raw["model_type"]])


@pytest.mark.parametrize("kind", CASES)
def test_logits_and_greedy_tokens(checkpoints: dict[str, Path], kind: str) -> None:
    """A prompt in chunks, longer than a window, and tokens after it."""
    path, ids, worker = checkpoints[kind], prompt(90), LocalWorker()
    model = reference(path, torch.float64)
    expected = generate(model, ids, 24)
    driver = Driver([worker], worker.load(path, dtype="float64"))
    logits, sequence = worker.record_logits(), greedy(ids, 24)
    driver.enter(sequence)
    driver.finish([sequence], chunk=32)
    driver.stream.close()
    assert sequence.tokens == expected
    with torch.inference_mode():
        theirs = model(torch.tensor([ids + expected])).logits[0, len(ids) - 1 : -1]
    torch.testing.assert_close(torch.cat(logits), theirs, rtol=0, atol=2e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 5e-4), ("bfloat16", 1.0)])
@pytest.mark.parametrize("kind", CASES)
def test_dtypes_of_the_cpu(
    checkpoints: dict[str, Path], kind: str, dtype: str, tolerance: float
) -> None:
    """What the CPU's kernels do not know takes the references."""
    path, ids, worker = checkpoints[kind], prompt(90), LocalWorker()
    driver = Driver([worker], worker.load(path, dtype=dtype))
    logits, sequence = worker.record_logits(), greedy(ids, 1)
    driver.enter(sequence)
    driver.finish([sequence])
    driver.stream.close()
    with torch.inference_mode():
        exact = reference(path, torch.float64)(torch.tensor([ids])).logits[0, -1]
    assert (logits[0][0].double() - exact).abs().max() < tolerance


@pytest.mark.parametrize("kind", [kind for kind in CASES if kind != "gpt_bigcode"])  # 1 KV head
def test_two_ranks_compute_what_one_does(checkpoints: dict[str, Path], kind: str) -> None:
    path, cls = checkpoints[kind], FAMILIES[kind]

    @torch.inference_mode()
    def work(group: Group) -> Any:
        return prefilled(path, cls, group, PLAIN)

    alone = work(Group())
    for found in Threads(2).run(work):
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-9)


@pytest.mark.parametrize("ranks", [1, 2])
def test_rows_in_place_of_embeddings(checkpoints: dict[str, Path], ranks: int) -> None:
    """They are taken as they are: not scaled, as the embedding's rows are, nor summed."""
    path, cls = checkpoints["granite"], FAMILIES["granite"]
    weight = load_file(path / "model.safetensors")["model.embed_tokens.weight"].double()
    scaled = weight[prompt(LENGTH)] * CASES["granite"]["embedding_multiplier"]

    @torch.inference_mode()
    def work(group: Group) -> Any:
        return prefilled(path, cls, group, PLAIN, scaled.clone())

    with torch.inference_mode():
        expected = prefilled(path, cls, Group(), PLAIN)
    for found in Threads(ranks).run(work):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)

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
from penstock.attention import Chunks, KvPlaces, StepContext
from penstock.config import read_config
from penstock.layers import Build
from penstock.models.decoder import Decoder
from penstock.parallel import Group
from penstock.quant import Methods, Unquantized
from penstock.weights import Checkpoint, load_weights
from penstock.worker.startup import loader
from ranks import Threads
from safetensors.torch import load_file

LENGTH = 70


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


def prefilled(
    path: Path, cls: type[Decoder], group: Group, given: torch.Tensor | None = None
) -> torch.Tensor:
    """The last logits [1, vocab] of a prompt, on a rank of a group; of the rows `given`, if any."""
    device = torch.device("cpu")
    spec = cls.read_config(read_config(path))
    methods = Methods(Unquantized(torch.float64, device))
    model = cls(spec, Build(torch.float64, device, group, methods, 128))
    with Checkpoint(path) as checkpoint:
        load_weights(checkpoint, model.checkpoint_targets(), model.ignored, lambda *_: None)
    model.finish()

    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    caches = [
        torch.zeros(5, 2, block.attention.kv_heads, 16, spec.head_dim, dtype=torch.float64)
        for block in model.blocks
    ]
    positions = ints(*range(LENGTH))
    chunks = Chunks(ints(0), ints(0, LENGTH), ints(LENGTH), LENGTH)
    places = [KvPlaces(ints(*range(5))[None], positions)] * len(caches)
    context = StepContext(positions, places, caches, None, chunks)
    ids = torch.tensor(prompt(LENGTH)) if given is None else torch.zeros(LENGTH, dtype=torch.int64)
    return model.logits(model.forward(ids, context, ints(LENGTH - 1), given))


@pytest.mark.parametrize("kind", [kind for kind in CASES if kind != "gpt_bigcode"])  # 1 KV head
def test_two_ranks_compute_what_one_does(checkpoints: dict[str, Path], kind: str) -> None:
    path, cls = checkpoints[kind], FAMILIES[kind]

    @torch.inference_mode()
    def work(group: Group) -> Any:
        return prefilled(path, cls, group)

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
        return prefilled(path, cls, group, scaled.clone())

    with torch.inference_mode():
        expected = prefilled(path, cls, Group())
    for found in Threads(ranks).run(work):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)

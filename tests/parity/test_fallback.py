"""Models that transformers' own module computes, over paged attention."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import generate, prompt, reference
from driver import Driver, greedy
from library_types import TYPES, documented, is_native, raw_configuration, row, running, write
from local import LocalWorker, Refused
from penstock.faults import BadModel
from penstock.models.fallback import Fallback, isolation
from penstock.models.fallback.description import describe
from penstock.models.fallback.interface import window_of
from penstock.rpc import shard_pb2 as pb

COUNT = 12
# Biases, learned positions, a wrapper around the decoder, one KV head, sinks, latent attention, two
# head sizes in a layer and between layers, windows, experts, softcap.
QUICK = (
    "gpt_neox", "gpt2", "opt", "gpt_bigcode", "gpt_oss", "deepseek_v3", "mimo_v2_flash",
    "gemma4_text", "kolibri1", "granitemoe", "vaultgemma", "biogpt",
)  # fmt: skip
SAMPLE = slice(3, None, 9)
library = pytest.mark.library


def through(path: Path, **settings: Any) -> tuple[LocalWorker, Driver]:
    """A worker whose model transformers computes, and its driver."""
    worker = LocalWorker()
    loaded = worker.load(path, model_backend="transformers", **settings)
    assert loaded.model_backend == "transformers"
    return worker, Driver([worker], loaded)


@pytest.mark.parametrize(
    "model_type", [pytest.param(t, marks=() if t in QUICK else library) for t in running()]
)
def test_tokens_and_logits_of_a_type(model_type: str, tmp_path: Path) -> None:
    """Alone; then in chunks, beside another sequence, and after a prefix hit."""
    path = write(model_type, tmp_path)
    model = reference(path, torch.float32)
    ids, others = prompt(90), prompt(50, seed=1)
    expected = generate(model, ids, COUNT)
    with torch.inference_mode():
        theirs = model(torch.tensor([ids + expected])).logits[0, len(ids) - 1 : -1]
    worker, driver = through(path)
    logits = worker.record_logits()
    alone, first, second = greedy(ids, COUNT), greedy(ids, COUNT), greedy(ids, COUNT)
    driver.enter(alone)
    driver.finish([alone])
    torch.testing.assert_close(torch.cat(logits), theirs, rtol=0, atol=2e-4)
    other = greedy(others, COUNT)
    driver.enter(first)
    while not first.tokens:
        driver.step([first], chunk=32)
    driver.enter(other)
    driver.enter_after(second, first)
    assert second.computed == 80
    driver.finish([first, other, second], chunk=32)
    driver.stream.close()
    assert alone.tokens == first.tokens == second.tokens == expected
    assert other.tokens == generate(model, others, COUNT)


@pytest.mark.parametrize("part", [SAMPLE, pytest.param(slice(None), marks=library)])
def test_the_table_of_types_is_true(part: slice) -> None:
    rows = documented().splitlines()[2:]
    assert rows[part] == [row(model_type) for model_type in TYPES[part]]
    assert len(running()) >= 60 and set(QUICK) <= set(running())
    native = [model_type for model_type in TYPES if f"| {model_type} | yes |" in documented()]
    assert native == [model_type for model_type in TYPES if is_native(model_type)]


@pytest.mark.parametrize("settings", [{}, {"kv_dtype": "int8"}])
def test_sampling_grammars_and_logprobs_are_those_of_native_families(
    checkpoint: Callable[[str], Path], settings: dict[str, str]
) -> None:
    path = checkpoint("mistral-window")
    found = []
    for backend in ("native", "transformers"):
        worker = LocalWorker()
        loaded = worker.load(path, dtype="float64", model_backend=backend, **settings)
        assert loaded.model_backend == backend
        assert bool(loaded.limitations) == (backend == "transformers")
        driver = Driver([worker], loaded)
        sampled = greedy(prompt(60), 24, temperature=0.8, top_p=0.9, top_k=50, seed=5)
        sampled.sampling.penalties.CopyFrom(pb.Penalties(repetition=1.2, frequency=0.1))
        plain = greedy(prompt(40, seed=3), 24, top_logprobs=3, prompt_logprobs=2)
        driver.enter(sampled)
        driver.enter(plain)
        driver.finish([sampled, plain])
        driver.stream.close()
        found.append((sampled, plain))
    for native, library_sequence in zip(*found, strict=True):
        assert native.tokens == library_sequence.tokens
        assert native.logprobs == pytest.approx(library_sequence.logprobs, abs=1e-4)


def test_every_type_without_a_family_takes_the_fallback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write("ctrl", tmp_path)
    config = json.loads((path / "config.json").read_text())
    config["architectures"] = ["CTRLLMHeadModel"]
    worker = LocalWorker()
    loaded = worker.load(path)
    assert loaded.model_backend == "transformers"
    given_up = "slower than a native family: the library launches more and smaller kernels"
    assert loaded.limitations[0] == given_up
    assert f"given up: {'; '.join(loaded.limitations)}" in caplog.text
    with pytest.raises(Refused, match="is not supported; supported: "):
        LocalWorker().load(path, model_backend="native")


EXPERTS = "--quantize leaves model.layers.*.mlp.experts.down_proj and "
FEW = "no --tp: transformers has no plan for its layers, and ranks would share only "
ROPE = "no RoPE of type dynamic or longrope"
GATHERED = "with --tp, each linear layer's outputs are gathered"


@pytest.mark.parametrize(
    ("model_type", "phrases"),
    [
        ("llama", ["with --tp, embeddings, norms and head are whole on each GPU", ROPE]),
        ("biogpt", [GATHERED]),
        ("gpt2", [FEW, "no weight format: none of its matrices is a linear layer"]),
        ("gpt_oss", [FEW, EXPERTS, "no --ep", ROPE]),
        ("mixtral", ["with --tp, embeddings", EXPERTS, "no --ep", ROPE]),
        ("deepseek_v3", [GATHERED, "the KV cache has keys and values of all heads", ROPE]),
    ],
)
def test_what_is_given_up_for_a_type(model_type: str, phrases: list[str]) -> None:
    _, *found = describe(raw_configuration(model_type)).limitations
    assert len(found) == len(phrases)
    for given_up, phrase in zip(found, phrases, strict=True):
        assert given_up.startswith(phrase)


def test_an_unknown_backend_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="model_backend 'vllm' is unknown; choose one of auto"):
        LocalWorker().load(write("gpt_neox", tmp_path), model_backend="vllm")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"model_type": "gpt_neos"}, "transformers does not know it; similar ones: gpt_neo"),
        ({"architectures": ["MistralsForCausalLM"]}, "(the nearest is MistralForCausalLM) and"),
        ({"model_type": None}, "transformers does not know it"),
        ({"model_type": "x", "auto_map": {"AutoConfig": "a.B"}}, "code (auto_map) is never run"),
        ({"architectures": ["GPTNeoXForTokenClassification"]}, "is not its causal language model"),
        ({"num_attention_heads": "four"}, "transformers cannot read config.json"),
        ({"hidden_size": 63}, "is not divisible by the number of attention"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "rope_type 'dynamic' changes the angles",
        ),
    ],
)
def test_refusals_before_weights_are_read(fields: dict[str, Any], text: str) -> None:
    raw = {**raw_configuration("gpt_neox"), **fields}
    with pytest.raises(BadModel, match=re.escape(text)):
        Fallback.read_config(raw)


def test_the_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadModel, match=re.escape("pip install 'penstock[transformers]'")):
        Fallback.read_config(raw_configuration("gpt_neox"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda tensors: tensors.pop("embed_out.weight"), "lacks tensors: "),
        (lambda tensors: tensors.update(more=torch.ones(2)), "has unknown tensors: more"),
        (
            lambda tensors: tensors.update({"gpt_neox.final_layer_norm.bias": torch.ones(3)}),
            "other shapes to tensors: gpt_neox.final_layer_norm.bias",
        ),
    ],
)
def test_tensors_must_fit(
    change: Callable[[dict[str, torch.Tensor]], Any], text: str, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    file = write("gpt_neox", tmp_path) / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith(("embed_out.weight", "lm_head.weight")))
    tensors["embed_out.weight"] = tensors.pop(name)
    change(tensors)
    if "embed_out.weight" in tensors:
        tensors[name] = tensors.pop("embed_out.weight")
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(Refused, match=re.escape(text)):
        through(tmp_path)


def test_positions_that_do_not_count_from_0(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="its positions do not count from 0"):
        through(write("roberta", tmp_path))


def masked(function: Callable[..., torch.Tensor]) -> torch.Tensor:
    """What a probing pass gets for a mask."""
    mask = torch.empty(1)
    mask.penstock_mask = function  # type: ignore[attr-defined]
    return mask


@pytest.mark.parametrize(
    ("function", "window"),
    [
        (lambda b, h, q, k: k <= q, 0),
        (lambda b, h, q, k: (k <= q) & (k > q - 24), 24),
        (lambda b, h, q, k: (k <= q) & (k > q - 500), 0),
    ],
)
def test_windows_of_masks(function: Callable[..., torch.Tensor], window: int) -> None:
    assert window_of(masked(function), 200) == window


@pytest.mark.parametrize(
    "function",
    [
        lambda b, h, q, k: k >= 0,
        lambda b, h, q, k: (k <= q) & (k // 24 == q // 24),
        lambda b, h, q, k: (k <= q) & (k % 2 == 0),
        lambda b, h, q, k: k < q,
    ],
)
def test_other_masks_are_refused(function: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(BadModel, match="neither causal nor a sliding window"):
        window_of(masked(function), 200)


@pytest.mark.parametrize("mask", [None, torch.zeros(1, 1, 4, 4)])
def test_unknown_masks_are_refused(mask: torch.Tensor | None) -> None:
    with pytest.raises(BadModel, match="mask"):
        window_of(mask, 200)


def rows_of(ids: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
    """What a sound module computes: each row from its own id and position."""
    positions = torch.arange(len(ids)) if positions is None else positions
    return torch.stack((ids.float().sin(), positions.float().cos()), dim=1)


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (lambda ids, positions: rows_of(ids, positions).cumsum(0), "tokens see each other"),
        (lambda ids, positions: rows_of(ids, None), "its positions are not those"),
        (
            lambda ids, positions: rows_of(
                ids, torch.arange(len(ids)) + 2 if positions is None else positions
            ),
            "do not count from 0",
        ),
    ],
)
def test_modules_that_mix_tokens_are_refused(run: Any, text: str) -> None:
    isolation.check_isolation(rows_of, 50, torch.device("cpu"))
    with pytest.raises(BadModel, match=text):
        isolation.check_isolation(run, 50, torch.device("cpu"))

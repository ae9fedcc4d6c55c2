"""What cannot be loaded says what is wrong and what to do; the process lives on."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import checkpoint_maker
from driver import SETTINGS
from local import LocalWorker, Refused
from penstock.faults import BadSetting
from penstock.rpc import shard_pb2 as pb
from penstock.worker.protocol.messages import to_settings
from penstock.worker.startup import loader
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"
NORM = "model.norm.weight"
QUERY = "model.layers.1.self_attn.q_proj.weight"
LISTS = dict.fromkeys(("short_factor", "long_factor"), [1.0] * 8)
QWEN2 = {"architectures": ["Qwen2ForCausalLM"]}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))("llama2")


@pytest.fixture
def model(original: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(original, tmp_path / "model"))


def refusal(path: Path, **settings: Any) -> str:
    with pytest.raises(Refused) as refused:
        LocalWorker().load(path, **settings)
    assert "Traceback" not in refused.value.text
    return str(refused.value)


def change_weights(model: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(model / WEIGHTS)
    for name, value in changes.items():
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    save_file(tensors, model / WEIGHTS, metadata={"format": "pt"})


def change_config(model: Path, **changes: Any) -> None:
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_missing_directory_and_files(model: Path) -> None:
    assert "does not exist" in refusal(model / "nowhere")
    (model / WEIGHTS).unlink()
    assert f"{WEIGHTS} is missing" in refusal(model)
    (model / "pytorch_model.bin").touch()
    assert f"run `penstock convert {model} OUT`" in refusal(model)
    (model / "config.json").unlink()
    assert "config.json is missing" in refusal(model)


def test_truncated_file(model: Path) -> None:
    data = (model / WEIGHTS).read_bytes()
    (model / WEIGHTS).write_bytes(data[: len(data) // 2])
    message = refusal(model)
    assert "FAILED_PRECONDITION" in message
    assert "truncated" in message and WEIGHTS in message and "download it again" in message


def test_misshaped_tensor_is_named_with_both_shapes(model: Path) -> None:
    change_weights(model, **{QUERY: torch.zeros(64, 32)})
    message = refusal(model)
    assert QUERY in message and "[64, 32]" in message and "[64, 64]" in message


def test_missing_and_left_over_tensors_are_named(model: Path) -> None:
    change_weights(model, **{NORM: None})
    assert f"lacks tensors: {NORM}" in refusal(model)
    change_weights(model, **{NORM: torch.ones(64), "model.extra.weight": torch.ones(2)})
    assert "unknown tensors: model.extra.weight" in refusal(model)


def test_index_that_names_a_missing_shard(model: Path) -> None:
    (model / WEIGHTS).rename(model / "a.safetensors")
    weight_map = dict.fromkeys(load_file(model / "a.safetensors"), "a.safetensors")
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    LocalWorker().load(model)
    index.write_text(json.dumps({"weight_map": {**weight_map, NORM: "b.safetensors"}}))
    assert "b.safetensors is missing" in refusal(model)


def test_a_single_file_comes_before_an_index(model: Path) -> None:
    """As in transformers. The index is that of an older download, whose files are gone or not."""
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {NORM: "a.safetensors"}}))
    LocalWorker().load(model)
    save_file({NORM: torch.ones(1)}, model / "a.safetensors")
    LocalWorker().load(model)


@pytest.mark.parametrize("name", ["gptq_model-4bit-128g", "model_quantized", "consolidated"])
def test_weight_files_of_other_names(model: Path, name: str) -> None:
    """As the launcher finds them (launcher/src/weight_files.rs)."""
    old = model / f"{name}.safetensors"
    (model / WEIGHTS).rename(old)
    LocalWorker().load(model)
    shutil.copy(old, model / "other.safetensors")
    assert f"has 2 weight files ({old.name}, other.safetensors)" in refusal(model)
    index = model / f"{name}.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(load_file(old), old.name)}))
    LocalWorker().load(model)
    index.write_text(json.dumps({"weight_map": {NORM: old.name, "extra": old.name}}))
    assert f"lacks tensor extra, which {index.name} lists" in refusal(model)
    save_file({"extra": torch.ones(1)}, model / WEIGHTS, metadata={"format": "pt"})
    assert "lacks tensors" in refusal(model)  # `WEIGHTS` comes first


def test_wrong_tensor_parallel_size_for_the_heads(model: Path) -> None:
    """Found before the ranks meet, so that no rank waits for the others."""
    message = refusal(model, world_size=3, rendezvous="file:///nonexistent/meeting")
    assert "INVALID_ARGUMENT" in message
    assert "num_attention_heads is 4" in message and "3 ranks" in message


def test_kv_memory_too_small_for_one_sequence(model: Path) -> None:
    message = refusal(model, kv_memory_bytes=100_000)
    assert "RESOURCE_EXHAUSTED" in message
    assert "one sequence of 256 tokens" in message and "--kv-memory" in message


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_sequence_tokens": 513}, "max_position_embeddings"),
        ({"dtype": "int3"}, "'int3' is unknown"),
        ({"device": "abacus"}, "'abacus' is unknown"),
        ({"memory_fraction": 0.0}, "memory_fraction must be above 0 and at most 1, found 0.0"),
        ({"memory_fraction": 1.01}, "memory_fraction must be"),
        ({"protocol_version": 9}, "protocol_version is 9"),
        ({"rank": 1, "world_size": 2}, "rank 1 of 2"),
    ],
)
def test_invalid_settings_are_refused(model: Path, settings: dict[str, Any], text: str) -> None:
    message = refusal(model, **settings)
    assert "INVALID_ARGUMENT" in message and text in message


@pytest.mark.parametrize(
    "settings",
    [
        {"memory_fraction": 1.0},
        {"memory_fraction": 0.0, "kv_memory_bytes": 1 << 20},  # which says how much by itself
        {"max_sequence_tokens": 512},
    ],
)
def test_extreme_settings_are_accepted(original: Path, settings: dict[str, Any]) -> None:
    loaded = LocalWorker().load(original, **settings)
    assert loaded.max_sequence_tokens == settings.get("max_sequence_tokens", 256)
    rest = settings.get("kv_memory_bytes", loaded.memory.kv) - loaded.memory.kv
    assert 0 <= rest < loaded.kv_groups[0].block_bytes


def test_load_reports_progress_memory_and_result(original: Path) -> None:
    """Bytes of weights, each once, then the measuring of memory, then what was loaded."""
    settings = {**SETTINGS, "dtype": "float64"}  # whose matrices are kept as they are loaded
    request = pb.LoadRequest(**{**settings, "model_path": str(original)})
    worker = LocalWorker()
    *events, last = worker.stub.Load(request)
    assert worker.stub.Health(pb.HealthRequest()) == pb.HealthReply(loaded=True)
    result = [(e.progress.phase, e.progress.done, e.progress.total) for e in events]
    *weights, begun, ended = result
    total = last.loaded.memory.weights
    assert {(phase, of) for phase, _, of in weights} == {("weights", total)}
    done = [bytes_ for _, bytes_, _ in weights]
    assert done == sorted(set(done)) and done[-1] == total
    assert (begun, ended) == (("memory", 0, 1), ("memory", 1, 1))


def test_load_is_logged_with_the_time_of_each_phase(
    original: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each phase by its own seconds, weights by their rate."""
    caplog.set_level("INFO")
    LocalWorker().load(original)
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("loaded: ")]
    number = r"\d+\.\d\d s"
    assert re.fullmatch(
        rf"loaded: begun {number} after the worker's start, device {number}, weights {number} "
        rf"\(\d+\.\d GB/s\), largest step, of 512 tokens, {number}, KV memory {number}, "
        rf"warm-up {number}",
        line,
    )
    now = [10.0]
    monkeypatch.setattr(loader.time, "monotonic", lambda: now[0])
    phases = loader._PhaseTimer()
    for seconds, size in ((1.5, 0), (2.0, 5_000_000_000)):
        now[0] += seconds
        phases.end("x", size)
    assert phases.lines[1:] == ["x 1.50 s", "x 2.00 s (2.5 GB/s)"]


@pytest.mark.skipif(shutil.which("ps") is None, reason="needs ps")
def test_the_age_of_the_process() -> None:
    command = ["ps", "-o", "etimes=", "-p", str(os.getpid())]
    before = int(subprocess.check_output(command))
    assert before - 1 <= loader._age() <= int(subprocess.check_output(command)) + 2


def test_context_of_the_model_where_none_is_set(original: Path) -> None:
    assert LocalWorker().load(original, max_sequence_tokens=0).max_sequence_tokens == 512


def test_kv_memory_beyond_the_machine_is_refused(model: Path) -> None:
    message = refusal(model, kv_memory_bytes=1 << 50)
    assert "RESOURCE_EXHAUSTED" in message and "more than this machine's" in message


@pytest.mark.parametrize(
    ("rank", "count", "text"), [(0, 0, "torch finds no GPU"), (2, 2, "only 2 are visible")]
)
def test_a_rank_without_a_gpu(
    rank: int, count: int, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    request = pb.LoadRequest(model_path=str(tmp_path), device="cuda", rank=rank)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(BadSetting, match=text):
        loader._device(to_settings(request))


@pytest.mark.parametrize(("rank", "count", "index"), [(0, 1, 0), (3, 1, 0), (0, 2, 0), (1, 2, 1)])
def test_the_gpu_of_a_rank(
    rank: int, count: int, index: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With one visible GPU it is that one."""
    request, current = pb.LoadRequest(model_path=str(tmp_path), device="cuda", rank=rank), []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(loader, "full_sums", lambda: None)
    assert loader._device(to_settings(request)) == torch.device("cuda", index) == current[0]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"architectures": ["NovelForCausalLM"]}, "NovelForCausalLM"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"quantization_config": "gptq"}, "quantization_config must be an object, found 'gptq'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"hidden_size": "many"}, "hidden_size must be a number"),
        ({"rope_parameters": {"rope_type": "ntk", "factor": 2.0}}, "rope_type 'ntk'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "short_factor must be a list"),
        (
            {"rope_parameters": {"rope_type": "longrope", **LISTS, "long_factor": [1.0]}},
            "long_factor must have a number for each of 8 pairs",
        ),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters per layer type"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor must be a number"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 0}},
            "factor must be a number above",
        ),
        ({"rope_parameters": {"rope_type": ["yarn"]}}, "rope_type ['yarn']"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2, "beta_fast": "x"}}, "beta_fast"),
        ({"rope_parameters": {"rope_theta": 1.0}}, "rope_theta must be above 1"),
        ({"hidden_size": math.nan}, "hidden_size must be a number"),
        ({"vocab_size": 10**400}, "vocab_size must be a whole number from 1"),
        ({"architectures": 5}, "architectures must be a list"),
        ({"num_key_value_heads": 3}, "not a multiple of num_key_value_heads, 3"),
        ({"head_dim": 15}, "head_dim must be even"),
        (QWEN2 | {"layer_types": ["full_attention"]}, "each of 3 layers"),
        (QWEN2 | {"layer_types": ["chunked_attention"] * 3}, "chunked_attention"),
    ],
)
def test_unsupported_configs_are_refused(model: Path, fields: dict[str, Any], text: str) -> None:
    change_config(model, **fields)
    message = refusal(model)
    assert "FAILED_PRECONDITION" in message and "config.json" in message and text in message


def test_an_unsupported_feature_names_the_other_backend(model: Path) -> None:
    change_config(model, hidden_act="gelu")
    assert "--model-backend transformers may run it" in refusal(model)
    assert "--model-backend" not in refusal(model, model_backend="native")
    change_config(model, hidden_act="silu", hidden_size="many")
    assert "--model-backend" not in refusal(model)


@pytest.mark.parametrize("weight_map", [{NORM: 5}, {NORM: [WEIGHTS]}, {NORM: "../" + WEIGHTS}])
def test_index_with_invalid_file_names_is_refused(model: Path, weight_map: Any) -> None:
    (model / WEIGHTS).rename(model / "a.safetensors")
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    message = refusal(model)
    assert "FAILED_PRECONDITION" in message and index.name in message


def test_a_refused_load_can_be_repeated(original: Path) -> None:
    worker = LocalWorker()
    with pytest.raises(Refused):
        worker.load(original, dtype="int3")
    assert worker.load(original).vocab_size == 501


def test_sums_of_products_stay_in_float32(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A GPU's worker asks that of cuBLAS, which may reduce splits in 16 bits otherwise."""
    request = pb.LoadRequest(model_path=str(tmp_path), device="cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    matmul = torch.backends.cuda.matmul
    names = [f"allow_{kind}_reduced_precision_reduction" for kind in ("bf16", "fp16")]
    before = [getattr(matmul, name) for name in names]
    try:
        for name in names:
            setattr(matmul, name, True)
        loader._device(to_settings(request))
        assert not any(getattr(matmul, name) for name in names)
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(matmul, name, value)

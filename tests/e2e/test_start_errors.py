"""What cannot start says why and what to do, with the right exit code and no stack trace."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file, save_file
from serving import Server, free_port

BROOK = Path(__file__).resolve().parents[2] / "python/penstock/brook"


def serve(*options: object, seconds: float = 90) -> tuple[int, str]:
    """Exit code and whole output of `penstock serve` that is expected to end by itself."""
    command = [sys.executable, "-m", "penstock", "serve", "--device", "cpu"]
    command += ["--port", str(free_port()), *map(str, options)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
    )
    output = done.stdout + done.stderr
    assert "Traceback" not in output and "panicked" not in output, output
    return done.returncode, output


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of brook that a test may damage."""
    return Path(shutil.copytree(BROOK, tmp_path / "model"))


def edit_config(model: Path, **fields: object) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_missing_model_folder(tmp_path: Path) -> None:
    code, output = serve("--model", tmp_path / "nothing")
    assert code == 1
    assert "nothing" in output


def test_a_folder_without_config(model: Path) -> None:
    (model / "config.json").unlink()
    code, output = serve("--model", model)
    assert code == 1
    assert "config.json" in output


def test_a_folder_without_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()
    code, output = serve("--model", model)
    assert code == 1
    assert "safetensors" in output


def test_system_prompt_refused_by_the_template(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}"
        "{{ messages[0].content }}"
    )
    code, output = serve("--chat-template", template, "--system-prompt", "Be brief.")
    assert code == 1
    assert "--system-prompt cannot be used" in output
    assert "no system turn" in output


def test_truncated_weights(model: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100_000])
    code, output = serve("--model", model)
    assert code == 1
    assert "model.safetensors" in output


def test_a_tensor_of_the_wrong_shape(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    tensors[name] = tensors[name][:, :-1].contiguous()
    save_file(tensors, model / "model.safetensors")
    code, output = serve("--model", model)
    assert code == 1
    assert name in output


def test_missing_tensor(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, model / "model.safetensors")
    code, output = serve("--model", model)
    assert code == 1
    assert "model.norm.weight" in output


def test_an_unknown_architecture(model: Path) -> None:
    edit_config(model, architectures=["WizardForCausalLM"], model_type="wizard")
    code, output = serve("--model", model)
    assert code == 1
    assert "WizardForCausalLM" in output


def test_more_workers_than_the_heads_divide_into() -> None:
    code, output = serve("--tp", 3)
    assert code in (1, 2)
    assert "3" in output and "head" in output


def test_too_little_kv_memory() -> None:
    code, output = serve("--kv-memory", "4KiB")
    assert code == 1
    assert "kv-memory" in output or "KV" in output


def test_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, output = serve("--port", port)
    assert code == 1
    assert str(port) in output


def test_unknown_options_and_settings(tmp_path: Path) -> None:
    assert serve("--colour", "red")[0] == 2
    settings = tmp_path / "penstock.toml"
    settings.write_text('colour = "red"\n')
    code, output = serve("--config", settings)
    assert code in (1, 2)
    assert "colour" in output


def test_a_chat_without_a_template(model: Path, tmp_path: Path) -> None:
    (model / "chat_template.jinja").unlink(missing_ok=True)
    path = model / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.pop("chat_template", None)
    path.write_text(json.dumps(config))
    with Server(tmp_path / "serve.log", ["--model", str(model)]) as server:
        body = {"model": "model", "messages": [{"role": "user", "content": "hi"}]}
        reply = httpx.post(f"{server.url}/v1/chat/completions", json=body)
        assert reply.status_code == 400
        assert "template" in reply.text
        body = {"inputs": "A", "parameters": {"max_new_tokens": 4}}
        assert httpx.post(f"{server.url}/generate", json=body).status_code == 200


def test_json_log_format_prints_only_json(tmp_path: Path) -> None:
    json_lines = ["--log-format", "json"]
    code, output = serve("--model", tmp_path / "nothing", *json_lines)
    assert code == 1
    assert "nothing" in json.loads(output)["message"]
    server = Server(tmp_path / "serve.log", json_lines)
    with server:
        httpx.get(f"{server.url}/nowhere")
    lines = [json.loads(line) for line in server.output().splitlines()]
    assert [line for line in lines if line["message"].startswith("stopping")]
    assert next(line for line in lines if line["message"] == "serving")["url"] == server.url


def test_tuning_without_a_gpu() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "tune", "--tp", "2"],
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is nothing to tune: torch finds no GPU" in done.stderr
    assert "Traceback" not in done.stderr

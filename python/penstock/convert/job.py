"""Writes Meta's or Mistral's own checkpoint as config.json, *.safetensors and tokenizer.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from penstock.convert import checkpoint, parameters
from penstock.convert.parameters import Parameters
from penstock.faults import BadSetting
from penstock.tokenizer import convert as convert_tokenizer

SHARD_BYTES = 4 << 30
LLAMA_3_TOKENS = 128_256
CONTEXT = 8192  # of a model whose files do not say it
LONG_CONTEXT = 131_072  # with scaled RoPE
MISTRAL_CONTEXT = 32_768
DTYPES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}


@dataclass(frozen=True)
class Report:
    """What was written. assumed: values of config.json that the checkpoint does not have."""

    out: Path
    tensors: int
    bytes: int
    tokenizer: str | None
    assumed: tuple[str, ...]

    def text(self) -> str:
        """Returns lines for the user."""
        lines = [f"{self.out}: {self.tensors} tensors, {self.bytes / 1e9:.2f} GB"]
        lines.append(f"tokenizer: {self.tokenizer or 'none found: add tokenizer.json'}")
        lines += [f"assumed: {each}" for each in self.assumed]
        return "\n".join(lines)


def convert(source: Path, out: Path, shard_bytes: int = SHARD_BYTES) -> Report:
    """Converts the checkpoint in `source` into the new folder `out`; config.json is written last.
    Raises BadSetting or BadModel."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadSetting(f"{out} exists already; choose another folder, or delete it")
    read = parameters.read(source / "params.json")
    shards = checkpoint.shards(source)
    out.mkdir(parents=True, exist_ok=True)
    weights = _Weights(out, shard_bytes)
    for name, tensor in checkpoint.tensors(shards, read):
        weights.add(name, tensor)
    weights.finish()
    tokenizer = convert_tokenizer(source, out)
    meta = any(source.glob("consolidated.*.pth"))
    config, assumed = _config(read, weights, meta=meta)
    _write(out / "config.json", config)
    return Report(
        out,
        len(weights.files),
        weights.bytes,
        None if tokenizer is None else tokenizer.name,
        tuple(assumed),
    )


class _Weights:
    """The written weights: files of at most `limit` bytes, and the shapes in them."""

    def __init__(self, out: Path, limit: int) -> None:
        self.out, self.limit = out, limit
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.files: dict[str, int] = {}  # index of each tensor's file
        self.bytes = 0
        self.dtype = torch.float32
        self._pending: dict[str, Tensor] = {}
        self._size = self._count = 0

    def add(self, name: str, tensor: Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        if self._pending and self._size + size > self.limit:
            self._flush()
        self._pending[name] = tensor
        self.shapes[name], self.dtype = tuple(tensor.shape), tensor.dtype
        self._size, self.bytes = self._size + size, self.bytes + size

    def finish(self) -> None:
        self._flush()
        names = {n: self._name(index) for n, index in sorted(self.files.items())}
        for index in range(self._count):
            (self.out / f"{index}.partial").rename(self.out / self._name(index))
        content = {"metadata": {"total_size": self.bytes}, "weight_map": names}
        _write(self.out / "model.safetensors.index.json", content)

    def _flush(self) -> None:
        path = self.out / f"{self._count}.partial"
        save_file(self._pending, path, metadata={"format": "pt"})
        path.chmod(0o644)  # safetensors lets the owner alone read it
        self.files |= dict.fromkeys(self._pending, self._count)
        self._pending, self._size, self._count = {}, 0, self._count + 1

    def _name(self, index: int) -> str:
        return f"model-{index + 1:05d}-of-{self._count:05d}.safetensors"


def _config(read: Parameters, weights: _Weights, *, meta: bool) -> tuple[dict[str, Any], list[str]]:
    """Returns config.json, and the values that are assumed."""
    vocabulary, _ = weights.shapes["model.embed_tokens.weight"]
    inner, _ = weights.shapes["model.layers.0.mlp.gate_proj.weight"]
    llama_3 = meta and vocabulary >= LLAMA_3_TOKENS
    context = read.context or _context(read, meta=meta, llama_3=llama_3)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM" if meta else "MistralForCausalLM"],
        "model_type": "llama" if meta else "mistral",
        "vocab_size": vocabulary,
        "hidden_size": read.dim,
        "intermediate_size": inner,
        "num_hidden_layers": read.layers,
        "num_attention_heads": read.heads,
        "num_key_value_heads": read.kv_heads,
        "head_dim": read.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": read.norm_eps,
        "rope_theta": read.rope_theta,
        "max_position_embeddings": context,
        "tie_word_embeddings": read.tied,
        "torch_dtype": DTYPES.get(weights.dtype, str(weights.dtype)),
        "bos_token_id": 128_000 if llama_3 else 1,
        "eos_token_id": [128_001, 128_008, 128_009] if llama_3 else 2,
    }
    assumed = [] if read.context else [f"max_position_embeddings {context}"]
    if not meta:
        config["sliding_window"] = read.window
    if read.scaled_rope:
        # Llama 3.2, whose models are narrower, was trained with another factor.
        factor = 32.0 if read.dim < 4096 else 8.0
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": CONTEXT,
        }
        assumed.append(f"rope_scaling factor {factor:g}")
    return config, assumed


def _context(read: Parameters, *, meta: bool, llama_3: bool) -> int:
    if not meta:
        return MISTRAL_CONTEXT
    if read.scaled_rope:
        return LONG_CONTEXT
    return CONTEXT if llama_3 else CONTEXT // 2


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

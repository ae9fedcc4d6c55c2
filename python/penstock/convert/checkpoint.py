"""Tensors of Meta's and Mistral's own checkpoints, by the names of transformers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from penstock.convert import pickles
from penstock.convert.parameters import Parameters
from penstock.faults import BadModel

LAYER = re.compile(r"layers\.(\d+)\.(.+)\.weight")
NAMES = {
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
OUTER = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
BY_INPUT = ("attention.wo", "feed_forward.w2")
"""Matrices that model-parallel shards divide by their inputs; other matrices, by their outputs."""
COMPUTED = ("rope.freqs",)  # a table, not a weight


def shards(folder: Path) -> list[dict[str, Tensor]]:
    """Opens the files of a checkpoint, one per model-parallel rank; tensors are read when they are
    used. Raises BadModel."""
    files = sorted(folder.glob("consolidated.*.pth")) or sorted(
        folder.glob("consolidated*.safetensors")
    )
    if not files:
        raise BadModel(
            f"{folder} has params.json, but neither consolidated.*.pth nor "
            "consolidated.safetensors; download the checkpoint again"
        )
    if files[0].suffix == ".pth":
        return [pickles.load(file) for file in files]
    try:
        return [_safetensors(files)]
    except Exception as error:
        raise BadModel(f"{files[0]} cannot be read: {error}") from error


def _safetensors(files: Sequence[Path]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in files:
        with safe_open(path, framework="pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return tensors


def tensors(
    shards: Sequence[dict[str, Tensor]], parameters: Parameters
) -> Iterator[tuple[str, Tensor]]:
    """Yields the name in transformers and the value of each tensor, joined from the shards. The
    rows of W_q and W_k get transformers' order. Raises BadModel for a missing or unknown tensor."""
    expected = set(OUTER) - ({"output.weight"} if parameters.tied else set())
    layers = range(parameters.layers)
    expected |= {f"layers.{layer}.{name}.weight" for layer in layers for name in NAMES}
    for index, shard in enumerate(shards):
        found = set(shard) - set(COMPUTED)
        if found != expected:
            name = sorted(found ^ expected)[0]
            what = "is not supported" if name in found else "is missing"
            raise BadModel(f"the checkpoint's file {index}: the tensor {name} {what}")
    for name in sorted(expected):
        yield _name(name), _joined(name, [shard[name] for shard in shards], parameters)


def _name(name: str) -> str:
    layer = LAYER.fullmatch(name)
    if layer is None:
        return OUTER[name]
    return f"model.layers.{layer[1]}.{NAMES[layer[2]]}.weight"


def _joined(name: str, parts: list[Tensor], parameters: Parameters) -> Tensor:
    layer = LAYER.fullmatch(name)
    kind = layer[2] if layer is not None else ""
    if parts[0].dim() == 1 or len(parts) == 1:
        joined = parts[0]
    elif name == "tok_embeddings.weight":
        # Llama 1 and 2 divide the embedding by its width, Llama 3 by its rows.
        joined = torch.cat(parts, dim=0 if parts[0].shape[1] == parameters.dim else 1)
    else:
        joined = torch.cat(parts, dim=1 if kind in BY_INPUT else 0)
    if kind == "attention.wq":
        return halves(joined, parameters.heads)
    if kind == "attention.wk":
        return halves(joined, parameters.kv_heads)
    return joined.contiguous()


def halves(weight: Tensor, heads: int) -> Tensor:
    """Reorders the rows of each head: RoPE rotates the pairs (2i, 2i + 1) in Meta's order and
    (i, i + d/2) in that of transformers. weight: [heads * d, inputs]."""
    rows, inputs = weight.shape
    pairs = weight.view(heads, rows // heads // 2, 2, inputs)
    return pairs.transpose(1, 2).reshape(rows, inputs)

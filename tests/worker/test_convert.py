"""Checkpoints in Meta's and Mistral's own layout: converted, they give the original's logits."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import SHAPE, prompt, reference, write
from penstock.convert import convert
from penstock.convert.checkpoint import NAMES, OUTER
from penstock.faults import BadModel, BadSetting
from safetensors.torch import load_file, save_file
from torch import Tensor

HEADS, KV_HEADS = SHAPE["num_attention_heads"], SHAPE["num_key_value_heads"]
BY_INPUT = ("wo", "w2")


def pairs(weight: Tensor, heads: int) -> Tensor:
    """Meta's order of the rows of W_q or W_k, row by row: pair i is (i, i + d/2)."""
    size = weight.shape[0] // heads
    order = [
        head * size + half * (size // 2) + i
        for head in range(heads)
        for i in range(size // 2)
        for half in range(2)
    ]
    return weight[order]


def original(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint of transformers in Meta's layout."""
    tensors = load_file(path / "model.safetensors")
    found = {}
    for meta, name in OUTER.items():
        found[meta] = tensors[name]
    for layer in range(SHAPE["num_hidden_layers"]):
        for meta, name in NAMES.items():
            weight = tensors[f"model.layers.{layer}.{name}.weight"]
            if meta == "attention.wq":
                weight = pairs(weight, HEADS)
            if meta == "attention.wk":
                weight = pairs(weight, KV_HEADS)
            found[f"layers.{layer}.{meta}.weight"] = weight
    return {name: tensor.contiguous() for name, tensor in found.items()}


def params(path: Path, **changes: Any) -> dict[str, Any]:
    config = json.loads((path / "config.json").read_text())
    rope = config.get("rope_parameters") or config
    fields = {
        "dim": config["hidden_size"],
        "n_layers": config["num_hidden_layers"],
        "n_heads": config["num_attention_heads"],
        "n_kv_heads": config["num_key_value_heads"],
        "norm_eps": config["rms_norm_eps"],
        "rope_theta": rope["rope_theta"],
        "head_dim": config["head_dim"],
        "vocab_size": -1,
        "multiple_of": 256,
        **changes,
    }
    return {name: value for name, value in fields.items() if value is not None}


def split(tensors: dict[str, Tensor], ranks: int, *, by_rows: bool) -> list[dict[str, Tensor]]:
    """The shards of model-parallel ranks."""

    def part(name: str, tensor: Tensor, rank: int) -> Tensor:
        if tensor.dim() == 1:
            return tensor
        embedding = name == "tok_embeddings.weight"
        inputs = name.split(".")[-2] in BY_INPUT or (embedding and not by_rows)
        return tensor.chunk(ranks, dim=1 if inputs else 0)[rank].clone()

    return [{name: part(name, t, rank) for name, t in tensors.items()} for rank in range(ranks)]


def write_meta(folder: Path, path: Path, ranks: int = 1, *, by_rows: bool = True) -> Path:
    folder.mkdir()
    for rank, shard in enumerate(split(original(path), ranks, by_rows=by_rows)):
        tables = {"rope.freqs": torch.ones(4)}
        torch.save({**shard, **tables}, folder / f"consolidated.{rank:02}.pth")
    (folder / "params.json").write_text(json.dumps(params(path)))
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("convert") / "llama", model_type="llama")


def assert_equal(path: Path, out: Path) -> None:
    """Compares all tensors and the logits."""
    theirs = load_file(path / "model.safetensors")
    ours: dict[str, Tensor] = {}
    for file in out.glob("*.safetensors"):
        ours |= load_file(file)
    assert set(ours) == set(theirs)
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(theirs)
    ids = torch.tensor([prompt(20)])
    logits = [reference(each, torch.float64)(ids).logits for each in (path, out)]
    assert torch.equal(*logits)


@pytest.mark.parametrize(("ranks", "by_rows"), [(1, True), (2, True), (2, False)])
def test_metas_layout(tmp_path: Path, llama: Path, ranks: int, by_rows: bool) -> None:
    source = write_meta(tmp_path / "meta", llama, ranks, by_rows=by_rows)
    report = convert(source, tmp_path / "out", shard_bytes=200_000)
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 1
    assert report.tokenizer is None
    assert report.assumed == ("max_position_embeddings 4096",)
    assert_equal(llama, tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == [
        "LlamaForCausalLM"
    ]


def test_mistrals_layout(tmp_path: Path) -> None:
    path = write(tmp_path / "mistral", model_type="mistral", sliding_window=16)
    source = tmp_path / "source"
    source.mkdir()
    save_file(original(path), source / "consolidated.safetensors")
    fields = params(path, sliding_window=16, max_seq_len=512, model_type="transformer")
    (source / "params.json").write_text(json.dumps(fields))
    report = convert(source, tmp_path / "out")
    assert report.assumed == ()
    assert_equal(path, tmp_path / "out")


def test_the_tokenizer_is_converted_and_the_context_follows_from_scaled_rope(
    tmp_path: Path, llama: Path
) -> None:
    source = write_meta(tmp_path / "meta", llama)
    (source / "params.json").write_text(json.dumps(params(llama, use_scaled_rope=True)))
    lines = (f"{base64.b64encode(bytes([n])).decode()} {n}" for n in range(256))
    (source / "tokenizer.model").write_text("\n".join(lines))
    report = convert(source, tmp_path / "out")
    assert report.tokenizer == "tokenizer.model"
    assert (tmp_path / "out/tokenizer.json").is_file()
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["rope_scaling"]["factor"] == 32.0
    assert report.assumed == ("max_position_embeddings 131072", "rope_scaling factor 32")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"moe": {"num_experts": 8}}, "moe"),
        ({"quantization_args": {"scheme": "int4"}}, "quantization_args"),
        ({"use_biases": True}, "use_biases"),
        ({"dim": None}, "dim"),
        ({"n_kv_heads": 3}, "n_kv_heads"),
        ({"n_layers": 1}, r"layers\.1\..* is not supported"),
        ({"n_layers": 4}, r"layers\.3\..* is missing"),
        ({"sliding_window": [16, None]}, "sliding_window"),
    ],
)
def test_parameters_that_are_not_supported_are_refused_by_name(
    tmp_path: Path, llama: Path, changes: dict[str, Any], word: str
) -> None:
    source = write_meta(tmp_path / "meta", llama)
    (source / "params.json").write_text(json.dumps(params(llama, **changes)))
    with pytest.raises(BadModel, match=word):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out/config.json").exists()


def test_other_folders_are_refused(tmp_path: Path, llama: Path) -> None:
    with pytest.raises(BadModel, match=r"params\.json"):
        convert(llama, tmp_path / "out")
    source = write_meta(tmp_path / "meta", llama)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(BadSetting, match="exists already"):
        convert(source, tmp_path / "full")
    (source / "consolidated.00.pth").unlink()
    with pytest.raises(BadModel, match="consolidated"):
        convert(source, tmp_path / "out")


class Code:
    """An object whose pickle runs code when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("ran"),)


def test_a_pickle_with_code_is_refused(
    tmp_path: Path, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_meta(tmp_path / "meta", llama)
    torch.save({"a": Code()}, source / "consolidated.00.pth")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadModel, match=r"consolidated\.00\.pth cannot be read"):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "ran").exists()

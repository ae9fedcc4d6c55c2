"""Checkpoints of pickles, and in Meta's and Mistral's own layout: converted, they give the
original's logits and tokens."""

from __future__ import annotations

import base64
import json
import re
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import SHAPE, checkpoint_maker, generate, prompt, reference, write
from driver import Driver, greedy
from huggingface_hub import save_torch_state_dict
from local import LocalWorker
from penstock.convert import convert
from penstock.convert.checkpoint import NAMES, OUTER
from penstock.convert.pickles import INDEX, SINGLE
from penstock.faults import BadModel, BadSetting
from safetensors.torch import load_file, save_file
from torch import Tensor

HEADS, KV_HEADS = SHAPE["num_attention_heads"], SHAPE["num_key_value_heads"]
BY_INPUT = ("wo", "w2")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
MASK = torch.ones(512, 512, dtype=torch.bool).tril().view(1, 1, 512, 512)
# Buffers that older versions of transformers saved, by layer.
BUFFERS: dict[str, dict[str, Tensor]] = {
    "gpt2": {
        "transformer.h.{}.attn.bias": MASK,
        "transformer.h.{}.attn.masked_bias": torch.tensor(-1e4),
    },
    "codegen": {"transformer.h.{}.attn.causal_mask": MASK},
    "llama2": {"model.layers.{}.self_attn.rotary_emb.inv_freq": torch.ones(8)},
}


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


@pytest.mark.parametrize("name", ["consolidated.00.pth", SINGLE])
@pytest.mark.parametrize("archive", [True, False])
def test_a_pickle_with_code_is_refused(
    tmp_path: Path, llama: Path, monkeypatch: pytest.MonkeyPatch, name: str, archive: bool
) -> None:
    is_meta = name.endswith(".pth")
    source = (write_meta if is_meta else write_pickles)(tmp_path / "source", llama)
    torch.save({"a": Code()}, source / name, _use_new_zipfile_serialization=archive)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        BadModel, match=rf"{re.escape(name)} cannot be read: it needs .*code"
    ) as bad:
        convert(source, tmp_path / "out")
    assert "weights_only" not in str(bad.value)
    assert not (tmp_path / "ran").exists()


def write_pickles(
    folder: Path, path: Path, shard: int | None = None, *, archive: bool = True
) -> Path:
    """The checkpoint as older versions of transformers saved it; in files of `shard` bytes."""
    folder.mkdir()
    (folder / "config.json").write_bytes((path / "config.json").read_bytes())
    tensors = reference(path, torch.float32).state_dict()
    for layer in range(SHAPE["num_hidden_layers"]):
        buffers = BUFFERS.get(path.name, {})
        tensors |= {name.format(layer): tensor.clone() for name, tensor in buffers.items()}
    if shard is None:
        torch.save(tensors, folder / SINGLE, _use_new_zipfile_serialization=archive)
    else:
        save_torch_state_dict(tensors, folder, max_shard_size=shard, safe_serialization=False)
        assert len(list(folder.glob("pytorch_model-*.bin"))) > 1
    return folder


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(tmp_path_factory.mktemp("cases"))


@pytest.mark.parametrize(
    ("name", "shard", "archive"),
    [
        ("opt", None, True),
        ("bloom", 500_000, True),
        ("gpt2", None, False),
        ("gpt2", 200_000, True),
        ("codegen", 200_000, True),
        ("llama2", 200_000, True),
        ("llama2", None, False),
        ("llama3-tied", None, True),
    ],
)
def test_pickles(
    tmp_path: Path, case: Callable[[str], Path], name: str, shard: int | None, archive: bool
) -> None:
    """The same tensors as transformers saves, and its tokens. Ties are in the pickles."""
    path, out = case(name), tmp_path / "out"
    source = write_pickles(tmp_path / name, path, shard, archive=archive)
    report = convert(source, out, shard_bytes=200_000)
    assert_equal(path, out)
    assert len(list(out.glob("model-*.safetensors"))) > 1
    assert (report.tensors, report.tokenizer) == (len(load_file(path / "model.safetensors")), None)
    tied = json.loads((path / "config.json").read_text())["tie_word_embeddings"]
    assert any(each.startswith(f"{HEAD}, which is ") for each in report.left_out) == tied
    tables = len(BUFFERS.get(name, {})) * SHAPE["num_hidden_layers"]
    assert any(each.startswith(f"{tables} tables") for each in report.left_out) == bool(tables)
    worker, sequence = LocalWorker(), greedy(prompt(20), 24)
    driver = Driver([worker], worker.load(out, dtype="float64"))
    driver.enter(sequence)
    driver.finish([sequence])
    driver.stream.close()
    assert sequence.tokens == generate(reference(path, torch.float64), prompt(20), 24)


def small(folder: Path, tensors: object, name: str = SINGLE, **fields: Any) -> Path:
    """A folder with these contents of a pickle and of config.json."""
    folder.mkdir(exist_ok=True)
    torch.save(tensors, folder / name)
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def written(out: Path) -> dict[str, Tensor]:
    return {n: t for file in out.glob("*.safetensors") for n, t in load_file(file).items()}


def test_views_are_written_as_tensors_of_their_own(tmp_path: Path) -> None:
    memory = torch.arange(48.0)
    tensors = {
        "turned": memory.view(6, 8).T,
        "part": memory[8:16],
        "overlapping": memory[12:20],
        "again": memory[8:16],
        "repeated": memory[:1].expand(5),
        "none": memory[:0],
        "parameter": torch.nn.Parameter(memory.view(12, 4)),
    }
    convert(small(tmp_path / "source", tensors), tmp_path / "out")
    found = written(tmp_path / "out")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor.detach()), name


@pytest.mark.parametrize(
    ("fields", "is_kept"),
    [({}, False), ({"tie_word_embeddings": True}, False), ({"tie_word_embeddings": False}, True)],
)
@pytest.mark.parametrize("names", [(EMBEDDING, HEAD), (HEAD, EMBEDDING)])
def test_a_head_that_is_the_embedding_is_written_once(
    tmp_path: Path, fields: dict[str, Any], is_kept: bool, names: tuple[str, ...]
) -> None:
    """A model whose head is its own needs its tensor."""
    source = small(tmp_path / "source", dict.fromkeys(names, torch.ones(4, 2)), **fields)
    report = convert(source, tmp_path / "out")
    assert written(tmp_path / "out").keys() == ({*names} if is_kept else {EMBEDDING})
    assert report.left_out == (() if is_kept else (f"{HEAD}, which is {EMBEDDING}",))


def test_pickles_beside_params_json(tmp_path: Path) -> None:
    source = small(tmp_path / "source", {"a": torch.ones(2)})
    (source / "params.json").write_text("{}")
    assert convert(source, tmp_path / "out").tensors == 1


def test_biases_and_heads_of_their_own_are_no_tables(tmp_path: Path) -> None:
    tensors = {HEAD: torch.ones(4, 2), EMBEDDING: torch.ones(4, 2), "h.0.attn.bias": torch.ones(4)}
    assert convert(small(tmp_path / "source", tensors), tmp_path / "out").left_out == ()
    assert written(tmp_path / "out").keys() == tensors.keys()


def test_all_files_but_weights_and_code_are_copied(tmp_path: Path) -> None:
    source = small(tmp_path / "source", {"a": torch.ones(2)})
    copied = ["vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json"]
    copied += [
        "tokenizer.json",
        "tokenizer.model.v3",
        "LICENSE",
        "additional_chat_templates/a.jinja",
    ]
    (source / "additional_chat_templates").mkdir()
    for name in [*copied, "optimizer.pt", "model.py", "training_args.bin", "tf_model.h5"]:
        (source / name).write_text(name)
    report = convert(source, tmp_path / "out")
    assert report.tokenizer == "tokenizer.json"
    weights = ["model-00001-of-00001.safetensors", "model.safetensors.index.json"]
    files = [file for file in (tmp_path / "out").rglob("*") if file.is_file()]
    names = {file.relative_to(tmp_path / "out").as_posix() for file in files}
    assert names == {*copied, *weights, "config.json"}
    assert all((tmp_path / "out" / name).read_text() == name for name in copied)


def test_the_tokenizer_of_a_pickled_checkpoint_is_converted(tmp_path: Path) -> None:
    source = small(tmp_path / "source", {"a": torch.ones(2)})
    lines = (f"{base64.b64encode(bytes([n])).decode()} {n}" for n in range(256))
    (source / "qwen.tiktoken").write_text("\n".join(lines))
    assert convert(source, tmp_path / "out").tokenizer == "qwen.tiktoken"
    assert (tmp_path / "out/tokenizer.json").is_file()


def test_a_run_follows_one_that_was_killed(tmp_path: Path) -> None:
    source = small(tmp_path / "source", {"a": torch.ones(2)})
    (tmp_path / "out/.partial").mkdir(parents=True)
    (tmp_path / "out/.partial/0.partial").write_text("unfinished")
    convert(source, tmp_path / "out")
    assert written(tmp_path / "out").keys() == {"a"}
    assert not (tmp_path / "out/.partial").exists()
    with pytest.raises(BadSetting, match="exists already"):
        convert(source, tmp_path / "out")


def test_a_full_disk(tmp_path: Path, llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [write_meta(tmp_path / "meta", llama), write_pickles(tmp_path / "pickles", llama)]
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _: usage)
        for source in sources:
            with pytest.raises(BadSetting, match=r"needs about .* its disk has 0\.0 GB free"):
                convert(source, tmp_path / "out")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        for source in sources:
            with pytest.raises(BadSetting, match=r"0\.partial cannot be written"):
                convert(source, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "out").exists()


def damaged(source: Path, *, cut: bool = False, content: bytes | None = None) -> None:
    file = source / SINGLE
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if cut else content or b"")


ONE = {"a": torch.ones(2)}
REFUSED: dict[str, tuple[object, str]] = {
    "nested": ({"epoch": 3, "model": ONE}, r"pytorch_model\.bin: 'model' holds a dict of 1 .*top"),
    "module": ({"module": ONE}, "'module' holds"),
    "state_dict": ({"state_dict": ONE}, "'state_dict' holds"),
    "no tensor": ({**ONE, "step": 700}, r"'step' is 700 \(int\)"),
    "no name": ({**ONE, 5: torch.ones(2)}, r"\.bin: 5 is tensor"),
    "a list": ([torch.ones(2)], "holds a list of 1 entries, not tensors by"),
    "nothing": ({}, "holds a dict of 0 entries, not tensors by"),
    "a tensor": (torch.ones(2), r"holds tensor.*, not tensors by"),
    "complex": ({"a": torch.ones(2, dtype=torch.complex64)}, "'a' is .*complex64"),
    "sparse": ({"a": torch.eye(3).to_sparse()}, "'a' is a sparse_coo tensor"),
    "without memory": ({"a": torch.ones(2, device="meta")}, "'a' is .* on meta"),
}


@pytest.mark.parametrize(("content", "word"), REFUSED.values(), ids=REFUSED)
def test_pickles_of_something_else_are_refused(tmp_path: Path, content: object, word: str) -> None:
    source = small(tmp_path / "source", content)
    with pytest.raises(BadModel, match=word):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"cut": True}, "cannot be read: it is damaged"),
        ({"content": b""}, "cannot be read: it is damaged"),
        ({"content": b"\x00" * 500}, "cannot be read: it is damaged"),
        ({"content": b"PK\x03\x04" * 90}, "cannot be read: it is damaged"),
        ({"content": b"version https://git-lfs.github.com/spec/v1\n"}, "pointer of Git LFS"),
    ],
    ids=["cut", "empty", "zeros", "no archive", "Git LFS"],
)
def test_damaged_pickles_are_refused(
    tmp_path: Path, change: dict[str, Any], word: str, archive: bool
) -> None:
    source = small(tmp_path / "source", {})
    tensors = {"a": torch.ones(5000)}
    torch.save(tensors, source / SINGLE, _use_new_zipfile_serialization=archive)
    damaged(source, **change)
    (tmp_path / "out").mkdir()
    with pytest.raises(BadModel, match=rf"{re.escape(SINGLE)} .*{word}") as bad:
        convert(source, tmp_path / "out")
    assert "weights_only" not in str(bad.value)
    assert list((tmp_path / "out").iterdir()) == []


FIRST, SECOND = "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"


def sharded(folder: Path, weight_map: object, **files: dict[str, Tensor]) -> Path:
    """A folder with an index and files, FIRST and SECOND."""
    for name, tensors in files.items():
        small(folder, tensors, {"first": FIRST, "second": SECOND, "single": SINGLE}[name])
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder


TWO = {"a": FIRST, "b": SECOND}
A, B = {"a": torch.ones(2)}, {"b": torch.ones(3)}


@pytest.mark.parametrize(
    ("weight_map", "files", "word"),
    [
        (TWO, {"first": A}, f"{SECOND} is missing, which {INDEX} lists"),
        ({"a": FIRST}, {"first": A, "second": B}, f"{SECOND} is not listed in {INDEX}"),
        (TWO, {"first": A, "second": B, "single": A}, f"{SINGLE} is not listed in {INDEX}"),
        (TWO, {"first": A, "second": A}, f"{SECOND} lacks tensor b, which {INDEX} lists"),
        (TWO, {"first": A, "second": A | B}, f"{SECOND} has tensor a, which is in {FIRST} by"),
        ({"a": FIRST}, {"first": A | B}, f"{FIRST} has tensor b, which is in no file by {INDEX}"),
        ({}, {"first": A}, f"{INDEX} lists no tensors"),
        (None, {"first": A}, f"{INDEX} is damaged"),
        ({"a": f"../{FIRST}"}, {"first": A}, f"{INDEX} names no file for a"),
    ],
)
def test_shards_must_be_those_of_the_index(
    tmp_path: Path, weight_map: object, files: dict[str, Any], word: str
) -> None:
    source = sharded(tmp_path / "source", weight_map, **files)
    with pytest.raises(BadModel, match=re.escape(word)):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_converted_is_named(tmp_path: Path, llama: Path) -> None:
    with pytest.raises(BadModel, match=r"llama has config\.json and \*\.safetensors already"):
        convert(llama, tmp_path / "out")
    source = small(tmp_path / "source", A, FIRST)
    with pytest.raises(BadModel, match=f"has {FIRST}, but neither {re.escape(INDEX)} nor"):
        convert(source, tmp_path / "out")
    (source / FIRST).rename(source / SINGLE)
    (source / "config.json").write_text("{")
    with pytest.raises(BadModel, match=r"config\.json cannot be read"):
        convert(source, tmp_path / "out")
    (source / "config.json").unlink()
    reads = r"reads params\.json with .* and config\.json with pytorch_model\.bin"
    with pytest.raises(BadModel, match=rf"source has pytorch_model\.bin; penstock convert {reads}"):
        convert(source, tmp_path / "out")
    (source / SINGLE).unlink()
    with pytest.raises(BadModel, match=r"source has no files; .*params\.json"):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()

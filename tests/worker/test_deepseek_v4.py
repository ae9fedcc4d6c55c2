"""DeepSeek-V4: caches of compressed entries, ranks, names and fields of published files, weight
formats, what is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import CASES, checkpoint_maker, generate, prompt, reference, write
from driver import Driver, greedy
from local import LocalWorker, Refused
from penstock.cache import KvGeometry, KvShape, entry_shape, kv_format
from penstock.config import read_config
from penstock.faults import BadModel
from penstock.models import family, read_specification
from penstock.parallel import Group
from penstock.quant import read_methods
from quantized import assert_equal_model, assert_equal_ranks, error_of_quantizing, quantized
from ranks import Threads, prefilled
from safetensors.torch import load_file, save_file
from test_experts import FORMATS
from test_fp8 import DEEPSEEK, in_blocks
from test_kv_groups import LONG, PROMPTS, WANTED, answers_of, driver_of
from test_mx import mxfp4
from torch import Tensor
from transformers import AutoConfig

CASE = "deepseek-v4"
WEIGHTS = "model.safetensors"
HOST = torch.device("cpu")
SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
# Sides are multiples of 128. All experts and entries are chosen: rounding changes no choice.
SIZES = {"hidden_size": 128, "num_hidden_layers": 2, "head_dim": 64, "q_lora_rank": 128}
SIZES |= {"o_lora_rank": 128, "intermediate_size": 256, "vocab_size": 512, "index_head_dim": 32}
SIZES |= {"index_n_heads": 8, "index_topk": 200, "num_experts_per_tok": 8}
KINDS = {"layer_types": [HEAVY, SPARSE], "mlp_layer_types": ["hash_moe", "moe"]}
WIDE = {**CASES[CASE], **SIZES, **KINDS, "initializer_range": 0.08}
FP8 = {**DEEPSEEK, "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("formats") / "plain", **WIDE)


def specification(raw: Mapping[str, Any]) -> Any:
    return read_specification(family(raw), raw)


def tokens_of(path: Path, ids: list[int], count: int, **settings: Any) -> list[int]:
    worker, sequence = LocalWorker(), greedy(ids, count)
    driver = Driver([worker], worker.load(path, dtype="float64", **settings))
    driver.enter(sequence)
    driver.finish([sequence], chunk=32)
    driver.stream.close()
    return sequence.tokens


def test_entries_have_a_cache_behind_those_of_layers(checkpoint: Callable[[str], Path]) -> None:
    """A row of each token is kept while entries need it; entries are kept, in little memory."""
    spec = specification(read_config(checkpoint(CASE)))
    rows = [KvShape.of(layer.attention, 2) for layer in spec.layers]
    heavy, sparse = 32 + 2 * 32, 32 + 4 * 32 + 4 * 20
    windows = {HEAVY: KvShape(32, 1, heavy, 1), SPARSE: KvShape(12, 1, sparse, 1)}
    windows["sliding_attention"] = KvShape(12, 1, 32, 1)
    assert rows == [windows[kind] for kind in CASES[CASE]["layer_types"]]
    entries = [entry_shape(each, 16) for each in spec.compressed_layers]
    # 32 elements in each block of 16 tokens; 32 + 20 elements in each 4 tokens.
    assert [each.head_dim for each in entries] == [2, 13, 2, 13]
    geometry = KvGeometry.of([*rows, *entries], 16, kv_format("auto", torch.bfloat16))
    assert [group.layers for group in geometry.groups] == [(5, 7), (6, 8), (2,), (1, 4), (0, 3)]
    assert [group.window for group in geometry.groups] == [0, 0, 12, 12, 32]


def test_freed_blocks_may_have_any_numbers(checkpoint: Callable[[str], Path]) -> None:
    """Blocks behind a window are freed, and then NaN; those of entries are kept."""
    worker, expected = LocalWorker(), answers_of(checkpoint(CASE))
    loaded = worker.load(checkpoint(CASE), dtype="float64")
    assert [group.window for group in loaded.kv_groups] == [0, 0, 12, 12, 32]
    driver = driver_of([worker], loaded)  # type: ignore[list-item]
    sequences = [greedy(ids, WANTED) for ids in (*PROMPTS[:4], LONG)]
    for sequence in sequences:
        driver.enter(sequence)
    driver.finish(sequences, chunk=32)
    driver.stream.close()
    for sequence in sequences:
        assert sequence.tokens == expected(sequence.prompt)
        assert sequence.released[:2] == [0, 0] and min(sequence.released[2:4]) > 0


@pytest.mark.parametrize("block_tokens", [32, 64])
def test_blocks_of_other_sizes(checkpoint: Callable[[str], Path], block_tokens: int) -> None:
    """A block may have several entries of each kind."""
    expected = generate(reference(checkpoint(CASE), torch.float64), prompt(90), 16)
    found = tokens_of(checkpoint(CASE), prompt(90), 16, block_tokens=block_tokens)
    assert found == expected


@pytest.mark.parametrize("block_tokens", [2, 24])
def test_blocks_that_cannot_have_entries(
    checkpoint: Callable[[str], Path], block_tokens: int
) -> None:
    with pytest.raises(Refused, match=f"block_tokens is {block_tokens}; compressed entries of"):
        LocalWorker().load(checkpoint(CASE), block_tokens=block_tokens)


def test_all_entries_are_chosen_if_they_are_few(tmp_path: Path) -> None:
    """No sequence has more entries than index_topk, so no scores are computed: keys may be NaN."""
    path = write(tmp_path / "few", **{**CASES[CASE], "index_topk": 128})
    expected = generate(reference(path, torch.float64), prompt(90), 16)
    tensors = load_file(path / WEIGHTS)
    for name in [name for name in tensors if ".indexer." in name]:
        tensors[name] = torch.full_like(tensors[name], torch.nan)
    save_file(tensors, path / WEIGHTS, metadata={"format": "pt"})
    assert tokens_of(path, prompt(90), 16) == expected


@pytest.mark.parametrize("length", [1, 3, 4, 7, 8, 31, 32, 33])
def test_prompts_about_the_ends_of_windows(checkpoint: Callable[[str], Path], length: int) -> None:
    ids = prompt(length, seed=1)
    expected = generate(reference(checkpoint(CASE), torch.float64), ids, 8)
    assert tokens_of(checkpoint(CASE), ids, 8) == expected


@pytest.mark.parametrize("expert_parallel", [False, True])
def test_four_ranks(tmp_path: Path, expert_parallel: bool) -> None:
    """Each has a head with its sink, a group of the output's matrix, and all rows."""
    path = write(tmp_path / "groups", **{**CASES[CASE], "o_groups": 4})
    raw = read_config(path)
    cls: Any = family(raw)
    methods = read_methods(raw, torch.float64, HOST)

    @torch.inference_mode()
    def work(group: Group) -> Tensor:
        return prefilled(path, cls, group, methods, expert_parallel=expert_parallel)

    (alone,) = Threads(1).run(work)
    for found in Threads(4).run(work):
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-9)


def test_ranks_must_divide_the_groups(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(Refused, match="o_groups is 2, which 4 ranks"):
        LocalWorker().load(checkpoint(CASE), world_size=4)


def published_name(name: str) -> str:
    """As published files have it, of a name that transformers writes."""
    name = name.replace(".attn.norm.", ".attn.kv_norm.").replace("model.hc_head.hc_", "hc_head_")
    return name.replace("embed_tokens", "embed").removeprefix("model.")


def test_published_names(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Experts of tokens may be int32; layers that predict further tokens are not loaded."""
    tensors = {"mtp.0.norm.weight": torch.ones(64)}
    for name, tensor in load_file(checkpoint(CASE) / WEIGHTS).items():
        is_table = name.endswith("tid2eid")
        tensors[published_name(name)] = tensor.int() if is_table else tensor
    assert {"embed.weight", "head.weight", "norm.weight", "hc_head_fn"} <= tensors.keys()
    assert {"layers.1.attn.kv_norm.weight", "layers.0.ffn.gate.tid2eid"} <= tensors.keys()
    save_file(tensors, tmp_path / WEIGHTS, metadata={"format": "pt"})
    shutil.copy(checkpoint(CASE) / "config.json", tmp_path)
    expected = tokens_of(checkpoint(CASE), prompt(40), 16)
    assert tokens_of(tmp_path, prompt(40), 16) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {
            "compress_ratios": [0, 0, 4, 128, 4, 0],
            "num_hash_layers": 2,
            "qk_rope_head_dim": 8,
            "rope_scaling": {
                "type": "yarn",
                "factor": 16,
                "original_max_position_embeddings": 64,
                "beta_fast": 32,
                "beta_slow": 1,
            },
            "rope_theta": 10000,
            "compress_rope_theta": 160000,
        },
        {"num_hash_layers": 0, "compress_rate_csa": 8, "compress_rate_hca": 64},
        {"rope_theta": 500.0, "scoring_func": "sigmoid", "partial_rotary_factor": 0.25},
        {},
    ],
)
def test_older_fields_and_defaults(
    checkpoint: Callable[[str], Path], fields: dict[str, Any]
) -> None:
    """As transformers reads the same fields."""
    raw = read_config(checkpoint(CASE))
    for name in ("layer_types", "mlp_layer_types", "rope_parameters", "compress_rates"):
        del raw[name]
    for name in ("rope_theta", "compress_rope_theta", "partial_rotary_factor", "qk_rope_head_dim"):
        raw.pop(name, None)
    raw |= {"head_dim": 64, **fields}
    theirs = AutoConfig.for_model(**raw).to_dict()
    assert specification(raw) == specification({**theirs, "architectures": raw["architectures"]})


def test_experts_of_tokens_that_there_are_not(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tmp_path / "damaged"
    shutil.copytree(checkpoint(CASE), path)
    tensors = load_file(path / WEIGHTS)
    tensors["model.layers.0.ffn.gate.tid2eid"][7, 1] = 8
    save_file(tensors, path / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(Refused, match="tid2eid names the experts 0 to 8, of 8"):
        LocalWorker().load(path)


@pytest.mark.parametrize("name", ["fp8", "int4"])
@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_weight_formats(plain: Path, tmp_path: Path, check: Callable[..., None], name: str) -> None:
    """What entries are summed up from is floats; so are matrices of groups, once loaded."""
    quantize, config = FORMATS[name]
    path, exact = quantized(plain, tmp_path, quantize, config)
    stored = load_file(path / WEIGHTS)
    suffix = {"fp8": "weight_scale_inv", "int4": "qweight"}[name]
    assert f"model.layers.1.attn.wo_a.{suffix}" in stored
    assert "model.layers.1.attn.compressor.wkv.weight" in stored
    check(path, exact)


def four_bits(matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
    """Two codes in a byte, called int8, and exponents."""
    stored, exact = mxfp4(matrix)
    codes = stored["weight_blocks"].flatten(1).view(torch.int8)
    return {"weight": codes, "scale": stored["weight_scales"].view(torch.float8_e8m0fnu)}, exact


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_fp8_with_experts_of_four_bits(
    plain: Path, tmp_path: Path, check: Callable[..., None], inside: bool
) -> None:
    """As published: scales are powers of two; a field says which format experts have."""
    blocks = in_blocks(128, 128, scale="scale", dtype="float8_e8m0fnu")
    others = r"lm_head|\.experts\."
    path, exact = quantized(plain, tmp_path, blocks, FP8, others)
    (tmp_path / "more").mkdir()
    experts, _ = quantized(plain, tmp_path / "more", four_bits, FP8, r"lm_head|attn|shared")
    both = {
        name: each for name, each in load_file(path / WEIGHTS).items() if ".experts." not in name
    }
    more = load_file(experts / WEIGHTS)
    both |= {name: each for name, each in more.items() if ".experts." in name}
    floats = load_file(tmp_path / "more" / "exact" / WEIGHTS)
    exact_tensors = load_file(exact / WEIGHTS)
    exact_tensors |= {name: each for name, each in floats.items() if ".experts." in name}
    save_file(both, path / WEIGHTS, metadata={"format": "pt"})
    save_file(exact_tensors, exact / WEIGHTS, metadata={"format": "pt"})
    raw = json.loads((path / "config.json").read_text())
    (raw["quantization_config"] if inside else raw)["expert_dtype"] = "fp4"
    (path / "config.json").write_text(json.dumps(raw))
    check(path, exact)


@pytest.mark.parametrize(("quantize", "most"), [("int4", 0.6), ("fp8", 0.2), ("eetq", 0.06)])
def test_quantized_while_loading(plain: Path, quantize: str, most: float) -> None:
    """The logits are near those of the floats, but not equal."""
    assert 1e-3 < error_of_quantizing(plain, quantize) < most


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"swiglu_limit": 7.0}, "swiglu_limit 7.0 is not supported, only 10.0 is"),
        ({"attention_bias": True}, "attention_bias True is not supported"),
        ({"mlp_bias": True}, "mlp_bias True is not supported"),
        ({"norm_topk_prob": False}, "norm_topk_prob False is not supported"),
        ({"scoring_func": "relu"}, "scoring_func 'relu' is not supported"),
        ({"num_key_value_heads": 2}, "num_key_value_heads 2 is not supported, only 1 is"),
        ({"layer_types": ["full_attention"] * 5}, "layer_types must have sliding_attention"),
        ({"layer_types": [HEAVY]}, "for each of 5 layers"),
        ({"mlp_layer_types": ["dense"] * 5}, "mlp_layer_types must have hash_moe or moe"),
        ({"compress_rates": {SPARSE: 6}}, f"compress_rates.{SPARSE} 6 is not supported"),
        ({"compress_rates": 4}, "compress_rates must be an object"),
        ({"o_groups": 3}, "num_attention_heads is 4, not a multiple of o_groups, 3"),
        ({"index_head_dim": 4}, "index_head_dim is 4, less than the 8 dimensions that rotate"),
        ({"qk_rope_head_dim": 16}, "qk_rope_head_dim 16 is not supported, only 8 is"),
        ({"rope_parameters": {"main": {}}}, "rope_parameters must have main and compress"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_type 'linear'"),
        ({"hc_eps": -1e-3}, "hc_eps must be at least 0"),
        ({"kv_lora_rank": 512}, "kv_lora_rank 512 is not supported"),
        ({"topk_method": "greedy"}, "topk_method 'greedy' is not supported"),
    ],
)
def test_fields_that_are_refused(
    checkpoint: Callable[[str], Path], fields: dict[str, Any], text: str
) -> None:
    raw = read_config(checkpoint(CASE))
    with pytest.raises(BadModel, match=re.escape(text)):
        specification({**raw, **fields})


def test_other_kv_dtypes_are_refused(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(Refused, match="kv_dtype int8 is not supported"):
        LocalWorker().load(checkpoint(CASE), kv_dtype="int8")

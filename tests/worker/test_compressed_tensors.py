"""Checkpoints that the compressed-tensors library wrote, against what the library reads in them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import SHAPE, checkpoint_maker
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import (
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
)
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from local import LocalWorker, Refused
from penstock.faults import BadModel
from penstock.quant import read_methods
from penstock.quant.compressed_ints import Ints
from quantized import (
    UP,
    Quantize,
    assert_equal_model,
    assert_equal_ranks,
    changed,
    drop,
    put,
    quantized,
    wide,
)
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

HOST = torch.device("cpu")
FP8: dict[str, Any] = {"num_bits": 8, "type": "float", "symmetric": True}
FP4: dict[str, Any] = {**FP8, "num_bits": 4}
MXFP8 = {**FP8, "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8}
TOKEN = {**FP8, "strategy": "token", "dynamic": True}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))


def scheme(name: str, weights: dict[str, Any], activations: Any = None, **more: Any) -> Any:
    """A group of all linear layers, and its format."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations, **more}
    return name, group


def by_library(name: str, group: dict[str, Any]) -> Quantize:
    """What the library stores, and what it reads in that."""
    compressor = BaseCompressor.get_value_from_registry(name)
    parsed = QuantizationScheme(**group)

    def quantize(matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        state = {"weight": matrix, **scales_of(matrix, parsed)}
        if parsed.input_activations is not None and not parsed.input_activations.dynamic:
            state["input_scale"] = torch.tensor([0.5])
        if name == "nvfp4-pack-quantized" and parsed.input_activations is not None:
            state["input_global_scale"] = torch.tensor([0.5])
        stored = compressor.compress(state, parsed)
        read = compressor.decompress(stored, parsed)["weight"].double()
        if "weight_global_scale" not in stored:
            return stored, read
        exact = nvfp4(stored)
        torch.testing.assert_close(read, exact, rtol=0.02, atol=0)  # it divides in bfloat16
        return stored, exact

    return quantize


def nvfp4(stored: Mapping[str, Tensor]) -> Tensor:
    """What the tensors stand for in float64, with the library's table of codes."""
    outputs, half = stored["weight_packed"].shape
    codes = unpack_fp4_from_uint8(stored["weight_packed"], outputs, 2 * half).double()
    scales = stored["weight_scale"].double() / stored["weight_global_scale"].double()
    return codes * scales.repeat_interleave(16, dim=1)


def scales_of(matrix: Tensor, parsed: Any) -> dict[str, Tensor]:
    """The library's scales for the range of each tensor, channel, group or block."""
    args = parsed.weights
    outputs, inputs = matrix.shape
    height, width = {
        "tensor": (outputs, inputs),
        "channel": (1, inputs),
        "group": (1, args.group_size),
        "tensor_group": (1, args.group_size),
        "block": tuple(args.block_structure or (1, 1)),
    }[args.strategy]
    padded = torch.nn.functional.pad(matrix, (0, -inputs % width, 0, -outputs % height))
    parts = padded.view(padded.shape[0] // height, height, padded.shape[1] // width, width)
    found = {}
    whole = None
    if args.strategy == "tensor_group":
        whole = generate_gparam(matrix.amin(), matrix.amax())
        found["weight_global_scale"] = whole
    low, high = parts.amin((1, 3)), parts.amax((1, 3))
    scale, _ = calculate_qparams(low, high, args, global_scale=whole)
    found["weight_scale"] = scale.view(1) if args.strategy == "tensor" else scale
    return found


def config_of(name: str, group: dict[str, Any]) -> dict[str, Any]:
    """The quantization_config that the library writes."""
    config = QuantizationConfig(
        config_groups={"group_0": group},
        ignore=["lm_head"],
        format=name,
        quantization_status="compressed",
    )
    found = json.loads(config.model_dump_json())
    more = {"version": "0.20.0", "sparsity_config": {}, "transform_config": {}}
    return {**found, **more, "quant_method": "compressed-tensors"}


NV = {"format": "nvfp4-pack-quantized"}
FORMATS = {
    "fp8-tensor-static": scheme(
        "float-quantized",
        {**FP8, "strategy": "tensor"},
        {**FP8, "strategy": "tensor", "dynamic": False},
    ),
    "fp8-channel-dynamic": scheme("float-quantized", {**FP8, "strategy": "channel"}, TOKEN),
    "fp8-block": scheme(
        "float-quantized", {**FP8, "strategy": "block", "block_structure": [32, 32]}, TOKEN
    ),
    "mxfp4": scheme("mxfp4-pack-quantized", {**FP4, "strategy": "group", "group_size": 32}),
    "nvfp4": scheme("nvfp4-pack-quantized", {**FP4, "strategy": "tensor_group", "group_size": 16}),
    "nvfp4-activations": scheme(
        "nvfp4-pack-quantized",
        {**FP4, "strategy": "tensor_group", "group_size": 16},
        {**FP4, "strategy": "tensor_group", "group_size": 16, "dynamic": "local"},
    ),
    "mxfp8": scheme("mxfp8-quantized", MXFP8),
    "mxfp8-activations": scheme("mxfp8-quantized", MXFP8, {**MXFP8, "dynamic": True}),
    "fp8-group": scheme("naive-quantized", {**FP8, "strategy": "group", "group_size": 32}),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", ["llama31", "phi3-longrope"])
def test_the_model_computes_what_the_library_reads(
    checkpoint: Callable[[str], Path], case: str, name: str, tmp_path: Path
) -> None:
    made = by_library(*FORMATS[name]), config_of(*FORMATS[name])
    assert_equal_model(*quantized(checkpoint(case), tmp_path, *made))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", ["llama31", "phi3-longrope"])
def test_two_ranks(checkpoint: Callable[[str], Path], case: str, name: str, tmp_path: Path) -> None:
    made = by_library(*FORMATS[name]), config_of(*FORMATS[name])
    # Of 96, each rank would have 48 inputs, which groups of 32 do not divide.
    path = wide(case, tmp_path) if name.startswith("mx") else checkpoint(case)
    assert_equal_ranks(*quantized(path, tmp_path, *made))


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8", "nvfp4"])
def test_shares_that_cut_groups_are_refused(name: str) -> None:
    config = config_of(*FORMATS[name])
    methods = read_methods({"quantization_config": config}, torch.bfloat16, HOST)
    with pytest.raises(BadModel, match=r"groups of \d\d inputs, but .* has 72 inputs"):
        methods.of(UP).allocate(64, 72)


@pytest.mark.parametrize("name", ["fp8-tensor-static", "fp8-channel-dynamic"])
def test_transformers_reads_the_same_checkpoint(
    checkpoint: Callable[[str], Path], name: str, tmp_path: Path
) -> None:
    """Through the library, which decompresses the model in its first forward pass."""
    made = by_library(*FORMATS[name]), config_of(*FORMATS[name])
    path, exact = quantized(checkpoint("llama31"), tmp_path, *made)
    theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    theirs(torch.tensor([[1, 2]]))
    stored = dict(theirs.named_parameters())
    matrix = AutoModelForCausalLM.from_pretrained(exact).get_parameter(f"{UP}.weight")
    torch.testing.assert_close(stored[f"{UP}.weight"].double(), matrix.double())


@pytest.mark.parametrize(
    ("ignored", "kept"),
    [
        (["lm_head", UP, UP.replace("up", "gate")], r"lm_head|layers\.0\.mlp\.(up|gate)_proj"),
        (["lm_head", "re:.*self_attn.*"], "lm_head|self_attn"),
        (["re:model.layers.[12].*", "lm_head"], r"lm_head|layers\.[12]\."),
        ([], "^$"),  # the head too
    ],
)
def test_ignored_modules_are_names_and_expressions(
    checkpoint: Callable[[str], Path], ignored: list[str], kept: str, tmp_path: Path
) -> None:
    form = FORMATS["fp8-channel-dynamic"]
    config = {**config_of(*form), "ignore": ignored}
    path, exact = quantized(checkpoint("llama31"), tmp_path, by_library(*form), config, kept)
    assert_equal_model(path, exact)


@pytest.mark.parametrize("name", ["fp8-tensor-static", "nvfp4"])
def test_a_head_of_floats_need_not_be_ignored(
    checkpoint: Callable[[str], Path], name: str, tmp_path: Path
) -> None:
    """As AutoRound writes static fp8. The class Linear has the head, other targets do not."""
    form = FORMATS[name]
    config = {**config_of(*form), "ignore": []}
    path, exact = quantized(checkpoint("llama31"), tmp_path, by_library(*form), config, "lm_head")
    assert_equal_model(path, exact)
    group = {**form[1], "format": form[0], "targets": ["re:.*(?:proj|head)$"]}
    changed(path, lambda _: None, config_groups={"group_0": group})
    with pytest.raises(Refused, match="lm_head"):
        LocalWorker().load(path)


@pytest.mark.parametrize("name", ["fp8-block", "fp8-tensor-static", "nvfp4"])
def test_ranks_share_a_quantized_head(
    checkpoint: Callable[[str], Path], name: str, tmp_path: Path
) -> None:
    """Its rows are odd, and the ranks cut a block of scales."""
    form = FORMATS[name]
    config = {**config_of(*form), "ignore": []}
    pair = quantized(checkpoint("llama31"), tmp_path, by_library(*form), config, "^$")
    assert_equal_model(*pair)
    assert_equal_ranks(*pair)


def test_matrices_that_are_dense_may_have_a_sparsity_config() -> None:
    config = config_of(*FORMATS["fp8-channel-dynamic"])
    config["sparsity_config"] = {"format": "dense", "targets": [], "global_sparsity": 0.1}
    read_methods({"quantization_config": config}, torch.float32, HOST)


def test_groups_have_their_own_formats(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    down = by_library(*FORMATS["fp8-block"])
    other = by_library(*FORMATS["fp8-channel-dynamic"])
    config = config_of(*FORMATS["fp8-channel-dynamic"])
    groups = {
        "others": FORMATS["fp8-channel-dynamic"][1],
        "down": {**FORMATS["fp8-block"][1], "targets": ["re:.*down_proj$"]},
    }

    def quantize(matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        return (down if matrix.shape == (64, 96) else other)(matrix)

    config = {**config, "config_groups": groups}
    assert_equal_model(*quantized(checkpoint("llama31"), tmp_path, quantize, config))


DOWN = "model.layers.1.mlp.down_proj"


@pytest.mark.parametrize(
    ("groups", "ignored"),
    [
        ({16: ["Linear"], 32: ["re:.*down_proj"]}, ["lm_head"]),
        ({16: ["re:.*down_proj"], 32: ["Linear"], 64: [DOWN]}, ["lm_head"]),
        ({16: ["re:.*proj"], 32: ["re:.*layers.1.*"], 64: ["Linear"]}, []),
        ({16: ["re:.*layers.1.*"], 32: ["re:.*down_proj", "re:.*z"]}, ["re:.*q_proj", "lm_head"]),
        ({16: ["Linear", DOWN], 32: [DOWN, "re:model.layers.0.mlp.*"]}, ["re:.*attn"]),
        ({16: ["re:layers", "mlp.down_proj", "lm_head"]}, [DOWN]),
    ],
)
def test_the_library_chooses_the_same_groups(
    groups: dict[int, list[str]], ignored: list[str]
) -> None:
    """Names come before expressions and those before the class, whatever the order of groups is."""
    weights = {"num_bits": 4, "type": "int", "strategy": "group"}
    raw = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ignored,
        "config_groups": {
            f"group_{at}": {"targets": targets, "weights": {**weights, "group_size": size}}
            for at, (size, targets) in enumerate(groups.items())
        },
    }
    methods = read_methods({"quantization_config": raw}, torch.float32, HOST)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE))
    apply_quantization_config(model, QuantizationConfig(**raw), show_progress=False)
    linears = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    for name, module in linears.items():
        chosen, method = getattr(module, "quantization_scheme", None), methods.of(name)
        found = method.layout.grouping.size if isinstance(method, Ints) else None
        assert found == (chosen and chosen.weights.group_size), name


@pytest.mark.parametrize(
    "names",
    [
        ("k_scale", "v_scale", "q_scale", "prob_scale"),
        ("k_proj.output_scale", "v_proj.output_scale", "q_proj.output_scale", "prob_output_scale"),
    ],
)
def test_scales_of_a_kv_cache_stand_beside_the_matrices(
    checkpoint: Callable[[str], Path], tmp_path: Path, names: tuple[str, ...]
) -> None:
    """They are for a cache in fp8; another one does without them."""
    made = by_library(*FORMATS["fp8-tensor-static"]), config_of(*FORMATS["fp8-tensor-static"])
    path, exact = quantized(checkpoint("llama31"), tmp_path, *made)

    def add(tensors: dict[str, Tensor]) -> None:
        for name in names:
            tensors[f"model.layers.1.self_attn.{name}"] = torch.tensor([0.5])

    scheme = {**FP8, "strategy": "tensor", "dynamic": False}
    assert_equal_model(changed(path, add, kv_cache_scheme=scheme), exact)


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("fp8-block", drop("weight_scale"), f"lacks tensors: {UP}.weight_scale"),
        ("mxfp4", drop("weight_scale"), f"lacks tensors: {UP}.weight_scale"),
        ("mxfp8", drop("weight_scale"), f"lacks tensors: {UP}.weight_scale"),
        (
            "mxfp8",
            put("weight_scale", lambda t: t.to(torch.bfloat16)),
            f"{UP}.weight_scale is bfloat16, but its layer takes uint8",
        ),
        ("nvfp4", drop("weight_global_scale"), f"lacks tensors: {UP}.weight_global_scale"),
        (
            "nvfp4",
            put("weight_scale", lambda t: t.float()),
            f"{UP}.weight_scale is float32, but its layer takes float8_e4m3fn",
        ),
        (
            "mxfp4",
            put("weight_packed", lambda t: t[:, :16].clone()),
            f"{UP}.weight_packed has shape [96, 16], but config.json makes it [96, 32]",
        ),
        ("fp8-tensor-static", drop("input_scale"), f"lacks tensors: {UP}.input_scale"),
        (
            "fp8-channel-dynamic",
            put("weight_scale", lambda t: t[:5].clone()),
            f"{UP}.weight_scale has shape [5, 1], but config.json makes it [96, 1]",
        ),
        (
            "fp8-channel-dynamic",
            put("weight", lambda t: t.float().to(torch.float8_e5m2)),
            f"{UP}.weight is float8_e5m2, but its layer takes float8_e4m3fn",
        ),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused(
    checkpoint: Callable[[str], Path], name: str, change: Any, text: str, tmp_path: Path
) -> None:
    made = by_library(*FORMATS[name]), config_of(*FORMATS[name])
    path, _ = quantized(checkpoint("llama31"), tmp_path, *made)
    with pytest.raises(Refused, match=re.escape(text)):
        LocalWorker().load(changed(path, change))


@pytest.mark.parametrize(
    ("weights", "more", "text"),
    [
        ({"num_bits": 4}, {}, "group_0.weights.num_bits 4 is not supported; supported: 8"),
        ({"num_bits": 4}, NV, "weights.strategy 'channel' is not supported"),
        (
            {"num_bits": 4, "strategy": "tensor_group", "group_size": 32},
            NV,
            "weights.group_size 32 is not supported; supported: 16",
        ),
        (
            {"num_bits": 4, "strategy": "group", "group_size": 16},
            {"format": "mxfp4-pack-quantized"},
            "weights.group_size 16 is not supported; supported: 32",
        ),
        (
            {"num_bits": 4, "strategy": "group", "group_size": 32},
            {"format": "mxfp4-pack-quantized", "input_activations": {"dynamic": False}},
            "input_activations with static scales",
        ),
        (
            {"strategy": "group", "group_size": 16},
            {"format": "mxfp8-quantized"},
            "weights.group_size 16 is not supported; supported: 32",
        ),
        (
            {"strategy": "group", "group_size": 32},
            {"format": "mxfp8-quantized", "input_activations": {"dynamic": False}},
            "input_activations with static scales",
        ),
        ({"num_bits": 8}, NV, "weights.num_bits 8 is not supported; supported: 4"),
        ({"type": "int"}, {}, "group_0.weights.type 'int' is not supported"),
        ({"symmetric": False}, {}, "weights.symmetric False is not supported"),
        ({"strategy": "attn_head"}, {}, "weights.strategy 'attn_head' is not supported"),
        ({"strategy": "group", "group_size": 40}, {}, "weights.group_size 40 is not supported"),
        ({"actorder": "group"}, {}, "weights.actorder 'group' is not supported"),
        ({}, {"format": "sparse-bitmask"}, "format 'sparse-bitmask' is not supported"),
        ({}, {"output_activations": {"num_bits": 8}}, "group_0.output_activations"),
        ({}, {"targets": "Linear"}, "group_0.targets must be a list of modules"),
        ({}, {"targets": ["re:("]}, "'re:(', which is no regular expression"),
    ],
)
def test_settings_of_groups_are_refused_by_name(
    weights: dict[str, Any], more: dict[str, Any], text: str
) -> None:
    group = {"targets": ["Linear"], "weights": {**FP8, "strategy": "channel", **weights}, **more}
    assert_refused({"config_groups": {"group_0": group}}, text)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            {"sparsity_config": {"format": "sparse-24-bitmask"}},
            "matrices in the sparse format 'sparse-24-b",
        ),
        ({"config_groups": {}}, "config_groups must be an object of groups"),
        ({"config_groups": {"a": 1}}, "config_groups.a must be an object"),
        ({"ignore": "lm_head"}, "ignore must be a list of modules"),
        ({"quantization_status": "calibration"}, "quantization_status 'calibration'"),
    ],
)
def test_settings_are_refused_by_name(config: dict[str, Any], text: str) -> None:
    assert_refused(config, text)


def assert_refused(config: dict[str, Any], text: str) -> None:
    base = config_of(*FORMATS["fp8-channel-dynamic"])
    with pytest.raises(BadModel, match=re.escape(text)):
        read_methods({"quantization_config": {**base, **config}}, torch.float32, HOST)

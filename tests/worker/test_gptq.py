"""GPTQ and Marlin checkpoints, written here from their libraries' documented layouts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import checkpoint_maker, write
from local import LocalWorker, Refused
from penstock.config import read_config
from penstock.faults import BadModel
from penstock.layers import Build
from penstock.models import family
from penstock.parallel import Group
from penstock.quant import Quantized, read_methods
from penstock.quant.gptq import Gptq
from penstock.quant.groups import sorted_by_group
from penstock.quant.packed import in_order
from penstock_kernels.packed_linear import Kind
from quantized import HOST, WIDE, Quantize, assert_equal_model, assert_equal_ranks, changed
from quantized import quantized as rewritten
from torch import Tensor

Codes = tuple[Tensor, Tensor, Tensor, Tensor]  # codes [outputs, inputs], scales, zeros, exact
Q = "model.layers.1.self_attn.q_proj"
DOWN = "model.layers.0.mlp.down_proj"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("wide") / "model", **WIDE)


def rounded(matrix: Tensor, index: Tensor, bits: int, sym: bool) -> Codes:
    """Codes of a matrix whose input k has group index[k]; scales are float16."""
    outputs, inputs = matrix.shape
    groups, most = int(index.max()) + 1, (1 << bits) - 1
    codes, exact = torch.empty(outputs, inputs, dtype=torch.int64), matrix.double()
    scales, zeros = torch.empty(groups, outputs), torch.empty(groups, outputs, dtype=torch.int64)
    for group in range(groups):
        part = matrix[:, index == group]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        if sym:
            high = torch.maximum(high, -low)
            low = -high
        scale = ((high - low) / most).clamp(min=1e-4).half().float()
        zero = torch.full_like(low, 1 << bits - 1) if sym else (-low / scale).round()
        code = ((part / scale[:, None]).round() + zero[:, None]).clamp(0, most)
        codes[:, index == group] = code.long()
        scales[group], zeros[group] = scale, zero.clamp(0, most).long()
        exact[:, index == group] = (code - zero[:, None]).double() * scale[:, None].double()
    return codes, scales, zeros, exact


def packed(codes: Tensor, bits: int, dim: int) -> Tensor:
    """Words of consecutive codes along a dimension, the first in the lowest bits."""
    fields = codes.movedim(dim, 0).numpy().astype(np.uint64)
    words = np.zeros((len(fields) * bits // 32, *fields.shape[1:]), np.uint64)
    for at, field in enumerate(fields):
        words[at * bits // 32] |= field << np.uint64(at * bits % 32)
    return torch.from_numpy(words.astype(np.uint32).view(np.int32)).movedim(0, dim).contiguous()


def less_one(words: Tensor, bits: int) -> Tensor:
    """Zero points minus 1, of all codes of a word in one subtraction."""
    ones = sum(1 << place for place in range(0, 32, bits))
    less = (words.numpy().view(np.uint32).astype(np.int64) - ones) % (1 << 32)
    return torch.from_numpy(less.astype(np.uint32).view(np.int32))


def group_index(inputs: int, group: int, desc_act: bool) -> Tensor:
    """In order, or as an order of the inputs by importance leaves it."""
    index = torch.arange(inputs) // (group if group > 0 else inputs)
    if desc_act:
        index = index[torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))]
    return index


def gptq(config: Mapping[str, Any]) -> Quantize:
    """What GPTQModel stores, with the settings of quantization_config."""
    bits = config["bits"]

    def quantize(matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        matrix = matrix.clone()
        matrix[:2].abs_()  # zero points of 0
        index = group_index(matrix.shape[1], config["group_size"], config["desc_act"])
        codes, scales, zeros, exact = rounded(matrix, index, bits, config["sym"])
        words = packed(zeros, bits, 1)
        if config["checkpoint_format"] == "gptq":
            words = less_one(words, bits)
        stored = {"qweight": packed(codes.t(), bits, 0), "qzeros": words}
        return {**stored, "scales": scales.half(), "g_idx": index.int()}, exact

    return quantize


def settings(**changes: Any) -> dict[str, Any]:
    """As GPTQModel writes them."""
    config: dict[str, Any] = {
        "quant_method": "gptq",
        "checkpoint_format": "gptq",
        "bits": 4,
        "group_size": 32,
        "desc_act": False,
        "sym": True,
        "lm_head": False,
        "pack_dtype": "int32",
        "meta": {"quantizer": ["gptqmodel:5.0"], "damp_percent": 0.05, "true_sequential": True},
    }
    return {**config, **changes}


GPTQ = {
    "4-bit": {},
    "4-bit, rows": {"group_size": -1},
    "4-bit, asymmetric": {"sym": False},
    "4-bit, asymmetric, v2": {"sym": False, "checkpoint_format": "gptq_v2"},
    "4-bit, order": {"desc_act": True, "group_size": 16},
    "4-bit, order, asymmetric": {"desc_act": True, "sym": False},
    "4-bit, order, rows": {"desc_act": True, "group_size": -1},
    "8-bit": {"bits": 8},
    "8-bit, order, asymmetric": {"bits": 8, "sym": False, "desc_act": True},
}


@pytest.mark.parametrize("name", GPTQ)
@pytest.mark.parametrize("ranks", [1, 2])
def test_gptq(checkpoint: Callable[[str], Path], name: str, ranks: int, tmp_path: Path) -> None:
    """The 48 inputs of two ranks cut groups of 32; in any order they have inputs of all groups."""
    config = settings(**GPTQ[name])
    made = rewritten(checkpoint("llama31"), tmp_path, gptq(config), config)
    (assert_equal_model if ranks == 1 else assert_equal_ranks)(*made)


@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_gptq_of_fused_matrices_whose_outputs_rotate(
    checkpoint: Callable[[str], Path], check: Callable[..., None], tmp_path: Path
) -> None:
    """Phi-3's rows are reordered, where zero points of several rows are one number."""
    config = settings(sym=False, desc_act=True)
    check(*rewritten(checkpoint("phi3-longrope"), tmp_path, gptq(config), config))


@pytest.mark.parametrize("name", GPTQ)
def test_both_ranks_have_the_only_kv_head(
    checkpoint: Callable[[str], Path], name: str, tmp_path: Path
) -> None:
    config = settings(**GPTQ[name])
    path = checkpoint("llama-one-kv-head")
    assert_equal_ranks(*rewritten(path, tmp_path, gptq(config), config))


@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_a_quantized_head(wide: Path, check: Callable[..., None], tmp_path: Path) -> None:
    config = settings(lm_head=True, group_size=128)
    check(*rewritten(wide, tmp_path, gptq(config), config, kept="nothing"))


@pytest.mark.parametrize(
    "rules",
    [
        {
            "dynamic": {
                "lm_head": {},
                r"-:.*\.mlp\.down_proj": {},
                r"-:model\.layers\.1\..*attn": {},
            }
        },
        {
            "modules_in_block_to_quantize": [
                ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"],
                ["mlp.up_proj", "mlp.gate_proj"],
            ],
            "dynamic": {r"-:model\.layers\.1\.self_attn": {}},
        },
    ],
    ids=["dynamic", "modules in block"],
)
@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_modules_that_rules_exclude(
    wide: Path, check: Callable[..., None], rules: dict[str, Any], tmp_path: Path
) -> None:
    config = settings(**rules)
    kept = r"lm_head|down_proj|layers\.1\.self_attn"
    check(*rewritten(wide, tmp_path, gptq(config), config, kept=kept))


def test_rules_give_modules_settings_of_their_own() -> None:
    rules = {
        r"-:.*\.1\.mlp": {},
        r"+:.*\.mlp\.down": {"bits": 8, "group_size": 64},
        r".*\.mlp": {"desc_act": True},
    }
    raw = {"quantization_config": settings(dynamic=rules)}
    methods = read_methods(raw, torch.float32, HOST)

    def layout(path: str) -> tuple[int, int, bool]:
        found = methods.of(path)
        assert isinstance(found, Gptq)
        return found.layout.bits, found.layout.grouping.size, found.layout.grouping.any_order

    assert methods.of("model.layers.1.mlp.up_proj") is methods.plain
    assert methods.of("lm_head") is methods.plain
    assert layout(DOWN) == (8, 64, False)
    assert layout("model.layers.0.mlp.up_proj") == (4, 32, True)
    assert layout(Q) == (4, 32, False)


@pytest.mark.parametrize(
    ("index", "columns", "groups", "ordered"),
    [
        ([0] * 32 + [1] * 32, 64, 2, False),
        ([0, 1] * 32, 64, 2, True),
        ([1] * 32 + [3] * 64, 96, 3, False),  # static_groups, the share of a rank
        ([0] * 5 + [2] * 17, 48, 3, True),
    ],
)
def test_groups_are_as_large_as_a_share_allows(
    index: list[int], columns: int, groups: int, ordered: bool
) -> None:
    codes = torch.randint(0, 16, (3, len(index)), dtype=torch.uint8)
    scales, zeros = torch.rand(4, 3), torch.randint(0, 16, (4, 3)).float()
    found = sorted_by_group(Quantized(codes, scales, zeros), torch.tensor(index), Kind.INT4)
    assert found.codes.shape == (3, columns) and len(found.scales) == groups
    assert (found.order is not None) == ordered
    size = columns // groups
    zero, scale = (t.t().repeat_interleave(size, 1) for t in (found.zeros, found.scales))
    matrix = in_order((found.codes - zero) * scale, found.order)
    expected = (codes - zeros.t()[:, index]) * scales.t()[:, index]
    torch.testing.assert_close(matrix, expected, rtol=0, atol=0)


def test_settings_in_a_file_of_their_own(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Of AutoGPTQ, in the first years; with biases of zeros, which some writers added."""
    config = settings()
    stored, exact = rewritten(checkpoint("llama31"), tmp_path, gptq(config), config)
    raw = json.loads((stored / "config.json").read_text())
    changed(stored, lambda tensors: tensors.update({f"{Q}.bias": torch.zeros(64)}))
    old = {"bits": 4, "group_size": 32, "damp_percent": 0.01, "desc_act": False, "sym": True}
    (stored / "quantize_config.json").write_text(json.dumps(old))
    del raw["quantization_config"]
    (stored / "config.json").write_text(json.dumps(raw))
    assert_equal_model(stored, exact, quantize="gptq")


def test_codes_without_settings_are_named(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    stored, _ = rewritten(checkpoint("llama31"), tmp_path, gptq(settings()), None)
    text = (
        r"has qweight in place of weight of model\.layers\.0\.mlp\.down_proj, .* and more: it looks"
    )
    with pytest.raises(Refused, match=rf"{text} like a GPTQ or AWQ checkpoint without its config"):
        LocalWorker().load(stored)


def marlin(group: int) -> Quantize:
    """The layout of Marlin's own packer: loops over tiles, lanes and fields."""

    def quantize(matrix: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        outputs, inputs = matrix.shape
        codes, scales, _, exact = rounded(matrix, group_index(inputs, group, False), 4, True)
        code = codes.t().numpy()  # [inputs, outputs]
        words = np.zeros((inputs // 16, outputs * 2), np.uint64)
        for tile_row in range(inputs // 16):
            for four in range(outputs // 64):
                for lane in range(32):
                    for tile in range(4):
                        found = lane_codes(code, tile_row * 16, four * 64 + tile * 16, lane)
                        word = sum(found[k] << 4 * at for at, k in enumerate(INTERLEAVED))
                        words[tile_row, four * 128 + lane * 4 + tile] = word
        single = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
        order = [i + 8 * j for i in range(8) for j in range(8)] if group > 0 else single
        stored = scales.view(-1, len(order))[:, order].view(scales.shape).half()
        tensors = {"B": torch.from_numpy(words.astype(np.uint32).view(np.int32)), "s": stored}
        return {**tensors, "workspace": torch.zeros(outputs // 128 * 16, dtype=torch.int32)}, exact

    return quantize


INTERLEAVED = (0, 2, 4, 6, 1, 3, 5, 7)


def lane_codes(code: Any, row: int, column: int, lane: int) -> list[int]:
    """The 8 codes of a 16 x 16 tile that a lane multiplies (m16n8k16, twice)."""
    first = 2 * (lane % 4)
    rows = (first, first + 1, first + 8, first + 9)
    columns = (lane // 4, lane // 4 + 8)
    return [int(code[row + r, column + c]) for c in columns for r in rows]


@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
@pytest.mark.parametrize(
    ("config", "quantize"),
    [
        ({"quant_method": "marlin", "bits": 4, "group_size": 128, "lm_head": False}, "marlin"),
        (settings(checkpoint_format="marlin", is_marlin_format=True, group_size=-1), "gptq"),
    ],
)
def test_marlin(
    wide: Path, check: Callable[..., None], config: dict[str, Any], quantize: str, tmp_path: Path
) -> None:
    check(*rewritten(wide, tmp_path, marlin(config["group_size"]), config), quantize=quantize)


@pytest.mark.parametrize(
    ("method", "config", "text"),
    [
        ("gptq", {"bits": 3}, "bits 3 is not supported; supported: 4, 8"),
        ("gptq", {"group_size": 20}, "group_size 20 is not supported; supported: -1 and multiples"),
        ("gptq", {"checkpoint_format": "gptq_v3"}, "checkpoint_format 'gptq_v3' is not supported"),
        ("gptq", {"dynamic": ["-:.*down.*"]}, "dynamic must be an object of patterns"),
        ("gptq", {"dynamic": {"-:(": {}}}, r"dynamic.-:\( is no regular expression"),
        ("gptq", {"dynamic": {"x": {"bits": 3}}}, "dynamic.x.bits 3 is not supported"),
        ("gptq", {"dynamic": {"x": {"act": 3}}}, "dynamic.x.act 3 is not supported"),
        ("gptq", {"modules_in_block_to_quantize": [[3]]}, "modules_in_block_to_quantize must be"),
        ("gptq", {"pack_dtype": "int64"}, "pack_dtype 'int64' is not supported"),
        ("gptq", {"is_marlin_format": True, "bits": 8}, "checkpoint_format .*; found bits 8"),
        ("marlin", {"bits": 8}, "bits 8 is not supported"),
        ("marlin", {"group_size": None}, "group_size None is not supported"),
        ("awq", {"version": "gemv"}, "version 'gemv' is not supported; supported: 'gemm'"),
        ("awq", {"bits": 8}, "bits 8 is not supported"),
        ("awq", {"zero_point": 1}, "zero_point 1 is not supported; supported: True, False"),
    ],
)
def test_settings_that_are_not_supported_are_refused_by_name(
    method: str, config: dict[str, Any], text: str
) -> None:
    common = {"group_size": 32} if method != "gptq" else settings()
    checkpoint_format = {} if "is_marlin_format" not in config else {"checkpoint_format": None}
    raw = {**common, "quant_method": method, **config, **checkpoint_format}
    with pytest.raises(BadModel, match=f"quantization_config.{text}"):
        read_methods({"quantization_config": raw}, torch.float32, HOST)


def spoiled(
    path: Path, directory: Path, change: Callable[[dict[str, Tensor]], object], **config: Any
) -> str:
    """Why a worker refuses a GPTQ checkpoint with changed tensors or settings."""
    original = settings()
    stored, _ = rewritten(path, directory, gptq(original), original)
    changed(stored, change, **config)
    with pytest.raises(Refused) as refused:
        LocalWorker().load(stored)
    assert "FAILED_PRECONDITION" in str(refused.value)
    return refused.value.text


def test_tensors_that_contradict_the_settings_are_named(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Before any weight is on the device: the checks precede the first move."""
    path = checkpoint("llama31")

    def refusal(name: str, change: Callable[[dict[str, Tensor]], object], **config: Any) -> str:
        return spoiled(path, tmp_path / name, change, **config)

    (tmp_path / "x").mkdir()
    for name in ("scales", "shape", "group", "dtype", "order", "differ", "infinite", "floats"):
        (tmp_path / name).mkdir()
    missing = refusal("scales", lambda tensors: tensors.pop(f"{Q}.scales"))
    assert f"lacks tensors: {Q}.scales" in missing
    shape = refusal("shape", lambda t: t.update({f"{Q}.qweight": t[f"{Q}.qweight"][:4]}))
    assert f"{Q}.qweight has shape [4, 64]" in shape and "[8, 64]" in shape
    group = refusal("group", lambda tensors: None, group_size=16)
    assert re.search(r"qzeros has shape \[\d+, \d+\], but config.json makes it \[", group)
    dtype = refusal("dtype", lambda t: t.update({f"{Q}.qweight": t[f"{Q}.qweight"].long()}))
    assert f"{Q}.qweight is int64, but its layer takes int32" in dtype
    order = refusal("order", lambda t: t[f"{Q}.g_idx"].copy_(t[f"{Q}.g_idx"].flip(0)))
    assert f"tensor {Q}.g_idx does not put 32 inputs into the groups in order" in order
    differ = refusal(
        "differ", lambda t: t[f"{Q}.g_idx"].copy_(t[f"{Q}.g_idx"].flip(0)), desc_act=True
    )
    assert f"{Q}.g_idx" in differ and "differ; their layers are multiplied as one" in differ
    infinite = refusal("infinite", lambda t: t[f"{Q}.scales"][1].fill_(float("nan")))
    assert f"tensor {Q}.scales has scales that are no finite numbers" in infinite

    def unquantized(tensors: dict[str, Tensor]) -> None:
        for suffix in ("qweight", "qzeros", "scales", "g_idx"):
            del tensors[f"{Q}.{suffix}"]
        tensors[f"{Q}.weight"] = torch.zeros(64, 64)

    floats = refusal("floats", unquantized)
    assert f"does not quantize {Q}, but its quantization_config does not say so" in floats


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("written", "named", "off", "how"),
    [
        ("gptq_v2", "gptq", 1, "as they are, as checkpoint_format 'gptq_v2'"),
        ("gptq", "gptq_v2", -1, "minus one, as checkpoint_format 'gptq'"),
    ],
)
def test_another_layout_than_config_json_names(
    checkpoint: Callable[[str], Path],
    bits: int,
    written: str,
    named: str,
    off: int,
    how: str,
    tmp_path: Path,
) -> None:
    """Symmetric weights have the middle of the codes as their zero points."""
    config = settings(bits=bits, checkpoint_format=written)
    stored, _ = rewritten(checkpoint("llama31"), tmp_path, gptq(config), config)
    middle = 1 << bits - 1
    text = (
        rf"_proj.qzeros has zero points of {middle + off}, .* makes all of them {middle}; .*{how}"
    )
    with pytest.raises(Refused, match=text):
        LocalWorker().load(changed(stored, lambda tensors: None, checkpoint_format=named))


def test_zero_points_that_differ_are_read_as_they_are(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Also where `sym` has the default of a tool that did not set it."""
    config = settings(sym=False)
    stored, exact = rewritten(checkpoint("llama31"), tmp_path, gptq(config), config)
    assert_equal_model(changed(stored, lambda tensors: None, sym=True), exact)


def without_index(tensors: dict[str, Tensor]) -> None:
    for name in [name for name in tensors if name.endswith(".g_idx")]:
        del tensors[name]


def empty_index(tensors: dict[str, Tensor]) -> None:
    for name in [name for name in tensors if name.endswith(".g_idx")]:
        tensors[name] = torch.empty(0, dtype=torch.int32)


@pytest.mark.parametrize("group", [32, -1])
@pytest.mark.parametrize("change", [without_index, empty_index])
@pytest.mark.parametrize("check", [assert_equal_model, assert_equal_ranks])
def test_groups_in_order_need_no_index(
    checkpoint: Callable[[str], Path],
    group: int,
    change: Callable[[dict[str, Tensor]], None],
    check: Callable[..., None],
    tmp_path: Path,
) -> None:
    config = settings(group_size=group)
    stored, exact = rewritten(checkpoint("llama31"), tmp_path, gptq(config), config)
    check(changed(stored, change), exact)


@pytest.mark.parametrize(
    ("change", "text"),
    [(without_index, "lacks tensors: .*g_idx"), (empty_index, r"g_idx has shape \[0\], but")],
)
def test_groups_in_any_order_need_an_index(
    checkpoint: Callable[[str], Path],
    change: Callable[[dict[str, Tensor]], None],
    text: str,
    tmp_path: Path,
) -> None:
    config = settings(desc_act=True)
    stored, _ = rewritten(checkpoint("llama31"), tmp_path, gptq(config), config)
    with pytest.raises(Refused, match=text):
        LocalWorker().load(changed(stored, change))


def test_a_layout_that_config_json_does_not_name(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    config = settings(quant_method="awq")
    for name in ("lm_head", "desc_act", "sym", "pack_dtype", "meta", "checkpoint_format"):
        del config[name]
    stored, _ = rewritten(checkpoint("llama31"), tmp_path, gptq(settings()), config)
    with pytest.raises(Refused, match=r"has unknown tensors: .*g_idx"):
        LocalWorker().load(stored)


@pytest.mark.parametrize(
    ("config", "sizes", "text"),
    [
        (settings(), {"intermediate_size": 80}, "has 40 inputs, and a multiple of 16 must divide"),
        (settings(), {"head_dim": 10}, "packs 8 inputs into one number, but .* has 20 inputs"),
        (
            {"quant_method": "marlin", "group_size": 32},
            {"head_dim": 32, "intermediate_size": 128},
            "stores 64 outputs together, but of q, k, v this rank has 64, 32, 32; use fewer ranks",
        ),
    ],
)
def test_shares_of_two_ranks_that_cut_groups_or_numbers_are_refused(
    tmp_path: Path, config: dict[str, Any], sizes: dict[str, int], text: str
) -> None:
    path = write(tmp_path / "model", model_type="llama", **sizes)
    raw = {**read_config(path), "quantization_config": config}
    cls: Any = family(raw)
    methods = read_methods(raw, torch.float32, HOST)
    with pytest.raises(BadModel, match=text):
        build = Build(torch.float32, HOST, Group(0, 2), methods, 8)
        cls(cls.read_config(raw), build).checkpoint_targets()

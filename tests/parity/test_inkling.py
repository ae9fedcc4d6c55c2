"""What Inkling has and no other family: published names, spare rows, states, quantized experts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import CASES, SHAPE, VOCAB, prompt, write
from driver import greedy
from penstock.cache import KvShape
from penstock.config import AttentionSpec, ConvolutionsSpec, MlpSpec, MoeSpec
from penstock.models import family, read_specification
from quantized import error_of_quantizing
from ranks import assert_ranks_agree
from safetensors.torch import load_file, save_file
from test_dense_families import PLAIN, run
from torch import nn
from transformers import InklingConfig, InklingForConditionalGeneration
from transformers.models.inkling import modeling_inkling

WEIGHTS = "model.safetensors"
TEXT = {**SHAPE, **CASES["inkling"]}
SOUND = {"n_mel_bins": 4, "mel_vocab_size": 8}
ROWS = 490  # of tokens; others have no logits
# Two ranks have inputs in whole groups of 128.
WIDE = {"hidden_size": 256, "moe_intermediate_size": 256, "intermediate_size": 256}
WIDE |= {"vocab_size": 512, "head_dim": 64, "swa_head_dim": 64, "initializer_range": 0.08}


class Images(nn.Module):
    """In place of the vision tower, which needs SciPy."""

    def __init__(self, config: object) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A checkpoint with the published names, and its model."""
    path = tmp_path_factory.mktemp("inkling")
    torch.manual_seed(7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modeling_inkling, "InklingVisionModel", Images)
        config = InklingConfig(text_config=TEXT, audio_config=SOUND)
        model = InklingForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("norm.weight", "layernorm.weight", "scale", "conv1d.weight", "bias")):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(path)
    tensors = load_file(path / WEIGHTS)
    tensors["model.mtp.layers.0.input_proj.weight"] = torch.ones(2, 2)
    save_file(tensors, path / WEIGHTS, {"format": "pt"})
    model.set_experts_implementation("eager")  # the others do not compute in float64
    return path, model.double()


def with_text(path: Path, directory: Path, dropped: str, fields: Mapping[str, Any]) -> Path:
    """The checkpoint with other fields of `text_config`, and without some."""
    raw = json.loads((path / "config.json").read_text())
    text = {name: value for name, value in raw["text_config"].items() if name not in dropped}
    raw["text_config"] = {**text, **fields}
    (directory / "config.json").write_text(json.dumps(raw))
    (directory / WEIGHTS).symlink_to(path / WEIGHTS)
    return directory


def assert_equal(path: Path, model: Any, rows: int = VOCAB) -> None:
    """Logits are those of the model, of its first `rows` tokens."""
    ids = [token % rows for token in prompt(90)]
    sequence = greedy(ids, 24)
    logits = run(path, sequence)
    with torch.inference_mode():
        tokens = torch.tensor([ids + sequence.tokens])
        theirs = model(tokens).logits[0, len(ids) - 1 : -1, :rows]
    torch.testing.assert_close(logits, theirs, rtol=0, atol=2e-4)
    assert sequence.tokens == theirs.argmax(-1).tolist()


def test_published_names(published: tuple[Path, Any]) -> None:
    """Sound, images and layers that predict further tokens are not loaded."""
    assert_equal(*published)


def test_published_fields(published: tuple[Path, Any], tmp_path: Path) -> None:
    """As transformers reads the same file."""
    path, model = published
    fields = {
        "sconv_kernel_size": 3,
        "model_max_length": 512,
        "local_layer_ids": [0, 3],
        "num_local_experts": 8,
        "sliding_window": 24,
        "num_mtp_layers": 2,
        "mtp_local_layer_ids": [0],
    }
    dropped = "conv_kernel_size max_position_embeddings layer_types n_routed_experts"
    assert_equal(with_text(path, tmp_path, f"{dropped} sliding_window_size", fields), model)


def test_sizes_of_dense_layers_have_published_fields() -> None:
    text = {"intermediate_size": 32, "dense_intermediate_size": 96, "dense_mlp_idx": 1}
    dropped = ("mlp_layer_types", "moe_intermediate_size", "intermediate_size")
    kept = {name: value for name, value in TEXT.items() if name not in dropped}
    raw = {"architectures": ["InklingForConditionalGeneration"], "text_config": {**kept, **text}}
    theirs = InklingConfig(text_config={**kept, **text}).text_config
    assert theirs.mlp_layer_types == ["dense", "sparse", "sparse", "sparse"]
    assert (theirs.intermediate_size, theirs.moe_intermediate_size) == (96, 32)
    dense, *mixtures = (layer.mlp for layer in read_specification(family(raw), raw).layers[1::2])
    assert isinstance(dense, MlpSpec) and dense.intermediate == 96
    assert all(isinstance(mlp, MoeSpec) and mlp.expert.intermediate == 32 for mlp in mixtures)


@pytest.mark.parametrize("is_cut", [False, True])
def test_rows_without_tokens(published: tuple[Path, Any], tmp_path: Path, is_cut: bool) -> None:
    """Embedding and head have some, or the head has none."""
    path, model = published
    with_text(path, tmp_path, "", {"unpadded_vocab_size": ROWS})
    if is_cut:
        tensors = load_file(path / WEIGHTS)
        head = "model.llm.unembed.weight"
        tensors[head] = tensors[head][:ROWS].clone()
        (tmp_path / WEIGHTS).unlink()
        save_file(tensors, tmp_path / WEIGHTS, {"format": "pt"})
    assert_equal(tmp_path, model, ROWS)


@pytest.mark.parametrize(("ranks", "shares_experts"), [(2, False), (2, True), (4, True)])
def test_ranks_read_published_names(
    published: tuple[Path, Any], ranks: int, shares_experts: bool
) -> None:
    """They cut gates and ups that alternate; each has a part of every shared expert."""
    path, _ = published
    assert_ranks_agree(path, PLAIN, ranks, expert_parallel=shares_experts)


@pytest.mark.parametrize(("ranks", "heads"), [(1, (2, 4)), (2, (1, 2)), (4, (1, 1))])
def test_what_layers_keep(ranks: int, heads: tuple[int, int]) -> None:
    """Every rank keeps the inputs of both outputs' convolutions."""
    raw = {"architectures": ["InklingForCausalLM"], **TEXT}
    layers = [layer.attention for layer in read_specification(family(raw), raw).layers]
    window, full = layers[1], layers[3]
    assert isinstance(window, AttentionSpec) and isinstance(full, AttentionSpec)
    assert KvShape.of(full, ranks) == KvShape(0, heads[0], 32)
    assert KvShape.of(window, ranks) == KvShape(24, heads[1], 24)
    for states, kept in ((layers[2], heads[0] * 32), (layers[0], heads[1] * 24)):
        assert isinstance(states, ConvolutionsSpec)
        assert states.state(ranks).channels == 2 * kept + 2 * SHAPE["hidden_size"]


@pytest.mark.parametrize(("quantize", "most"), [("int4", 0.6), ("fp8", 0.2), ("eetq", 0.06)])
@pytest.mark.parametrize("is_published", [False, True])
def test_it_is_quantized_while_loading(
    tmp_path: Path, published: tuple[Path, Any], quantize: str, most: float, is_published: bool
) -> None:
    """The logits are near those of the floats, but not equal."""
    path = tmp_path / "model"
    if is_published:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(modeling_inkling, "InklingVisionModel", Images)
            config = InklingConfig(text_config={**TEXT, **WIDE}, audio_config=SOUND)
            InklingForConditionalGeneration(config).save_pretrained(path)
    else:
        write(path, **{**CASES["inkling"], **WIDE})
    assert 1e-3 < error_of_quantizing(path, quantize) < most

"""MiniMax-Text-01 and M1 as published: other fields than transformers', and a part of each head
rotates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import checkpoint_maker, prompt, reference
from local import every_run
from penstock.config import LightningSpec, alibi_slopes
from penstock.faults import BadModel
from penstock.models import family, read_specification

HEAD_DIM, ROTATED, THETA = 24, 8, 9000.0
# Published fields that the case's config.json has under other names, or by default.
FIELDS: dict[str, Any] = {
    "architectures": ["MiniMaxText01ForCausalLM"],
    "model_type": "minimax_text_01",
    "attn_type_list": [1, 0, 0, 1, 0],
    "layernorm_full_attention_alpha": 1.3,
    "layernorm_full_attention_beta": 0.7,
    "layernorm_linear_attention_alpha": 2.1,
    "layernorm_linear_attention_beta": 1.2,
    "layernorm_mlp_alpha": 0.8,
    "layernorm_mlp_beta": 1.6,
    "postnorm": True,
    "rope_theta": THETA,
    "rotary_dim": ROTATED,
    "shared_intermediate_size": 0,
    "shared_moe_mode": "sigmoid",
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint_maker(tmp_path_factory.mktemp("checkpoints"))("minimax")


@pytest.fixture
def published(plain: Path, tmp_path: Path) -> Path:
    """The case's tensors with a published config.json."""
    for file in plain.glob("*.safetensors"):
        (tmp_path / file.name).symlink_to(file)
    raw = json.loads((plain / "config.json").read_text())
    dropped = ("layer_types", "rope_parameters", "block_size", *(n for n in raw if "factor" in n))
    kept = {name: value for name, value in raw.items() if name not in dropped}
    (tmp_path / "config.json").write_text(json.dumps({**kept, **FIELDS}))
    return tmp_path


def partly_rotating(plain: Path) -> Any:
    """transformers' model, in which whole heads rotate, with pairs whose frequency is 0: its
    queries and keys are permuted so that the others are the pairs of the first dimensions."""
    model = reference(plain, torch.float64)
    parts = torch.arange(HEAD_DIM).split([ROTATED, HEAD_DIM - ROTATED])
    order = torch.cat([part.chunk(2)[half] for half in (0, 1) for part in parts])
    with torch.no_grad():
        for name, matrix in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                matrix.copy_(matrix.view(-1, HEAD_DIM, matrix.shape[1])[:, order].flatten(0, 1))
    pairs = torch.arange(ROTATED // 2)
    frequencies = torch.zeros(HEAD_DIM // 2)
    frequencies[: len(pairs)] = THETA ** (-2 * pairs / ROTATED)
    model.model.rotary_emb.inv_freq = frequencies
    return model


def test_published_files_compute_what_transformers_does(plain: Path, published: Path) -> None:
    ids = prompt(90)
    runs = every_run(published, ids)
    with torch.inference_mode():
        tokens = torch.tensor([ids + runs.tokens()])
        theirs = partly_rotating(plain)(tokens).logits[0, len(ids) - 1 : -1].double()
    torch.testing.assert_close(torch.cat(runs.logits), theirs, rtol=0, atol=2e-4)


def test_layers_differ_by_kind_alone(published: Path) -> None:
    """A layer's decays are its own, but its kernels are those of others."""
    raw = json.loads((published / "config.json").read_text())
    first, second, third, fourth, last = read_specification(family(raw), raw).layers
    assert first == fourth != second == third == last
    mixers = second.attention, third.attention
    assert isinstance(mixers[0], LightningSpec) and isinstance(mixers[1], LightningSpec)
    assert mixers[0].decays != mixers[1].decays


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"postnorm": None}, "postnorm must be true"),
        ({"attn_type_list": [0, 1, 2, 0, 1]}, "attn_type_list must hold 0 or 1"),
        ({"attn_type_list": [0, 1]}, "layer_types must hold"),
        ({"shared_intermediate_size": 96}, "shared_intermediate_size 96 is not supported"),
    ],
)
def test_published_fields_that_are_refused(
    published: Path, fields: dict[str, Any], text: str
) -> None:
    raw = {**json.loads((published / "config.json").read_text()), **fields}
    with pytest.raises(BadModel, match=text):
        read_specification(family(raw), raw)


@pytest.mark.parametrize(("layer", "factor"), [(1, 0.75), (2, 0.5), (4, 1e-5)])
def test_decays_of_six_heads(published: Path, layer: int, factor: float) -> None:
    """The published code has the slopes of ALiBi, transformers those of a power of two."""
    raw = json.loads((published / "config.json").read_text())
    raw |= {"num_attention_heads": 6, "hidden_size": 96}
    spec = read_specification(family(raw), raw).layers[layer].attention
    assert isinstance(spec, LightningSpec)
    expected = [factor * slope for slope in alibi_slopes(6)]
    assert spec.decays == pytest.approx(expected, rel=1e-4, abs=1e-5 / 4)

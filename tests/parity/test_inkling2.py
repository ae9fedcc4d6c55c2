"""What Inkling 2 has and no other family: attention over depth, spare rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import CASES, SHAPE, VOCAB, prompt, reference, write
from driver import greedy
from penstock.config import ConvolutionsSpec, NormSpec, ResidualSpec
from penstock.layers import Build, Residual
from penstock.layers.depth import ROWS, DepthAttention, DepthStreams
from penstock.models import family, read_specification
from penstock.parallel import Group
from penstock.quant import Methods, Unquantized
from quantized import error_of_quantizing
from ranks import assert_ranks_agree
from safetensors.torch import load_file, save_file
from test_dense_families import PLAIN, changed, run
from transformers import Inkling2Config, Inkling2ForConditionalGeneration, Inkling2TextConfig
from transformers.models.inkling2.modeling_inkling2 import Inkling2BlockAttentionResidual

WEIGHTS = "model.safetensors"
CPU = torch.device("cpu")
VISION = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"text_hidden_size": 64, "projection_hidden_dim": 16}
TOKENS = 490  # others have rows, and no logits
# Inputs are in whole groups of 128. All experts are chosen: others would change much.
WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "swa_head_dim": 64}
WIDE |= {"num_experts_per_tok": 8}
WIDE |= {"vocab_size": 512, "unpadded_vocab_size": 512, "initializer_range": 0.08}


def assert_equal(path: Path, model: Any, tokens: int = VOCAB) -> None:
    """Logits are those of the model, of its first `tokens` tokens."""
    ids = [token % tokens for token in prompt(90)]
    sequence = greedy(ids, 24)
    logits = run(path, sequence)
    with torch.inference_mode():
        every = torch.tensor([ids + sequence.tokens])
        theirs = model(every).logits[0, len(ids) - 1 : -1, :tokens]
    torch.testing.assert_close(logits, theirs.double(), rtol=0, atol=2e-4)
    assert sequence.tokens == theirs.argmax(-1).tolist()


def with_images(path: Path, directory: Path) -> Path:
    """The text of a checkpoint in one that has images too, and layers for further tokens."""
    text = json.loads((path / "config.json").read_text())
    config = Inkling2Config(text_config=text, vision_config=VISION)
    whole = Inkling2ForConditionalGeneration(config)
    whole.save_pretrained(directory)
    tensors, own = load_file(directory / WEIGHTS), load_file(path / WEIGHTS)
    assert {name for name in own if not name.endswith("_weight_scale")} <= tensors.keys()
    tensors |= own
    tensors["model.mtp.layers.0.input_proj.weight"] = torch.ones(2, 2)
    save_file(tensors, directory / WEIGHTS, {"format": "pt"})
    return directory


def test_text_of_a_checkpoint_with_images(checkpoint: Any, tmp_path: Path) -> None:
    path = checkpoint("inkling2")
    assert_equal(with_images(path, tmp_path), reference(path, torch.float64))


def test_other_names_of_fields(checkpoint: Any, tmp_path: Path) -> None:
    """As transformers reads the same file."""
    fields = {
        "sconv_kernel_size": 3,
        "model_max_length": 512,
        "local_layer_ids": [0, 3, 4],
        "num_local_experts": 8,
        "sliding_window": 24,
        "intermediate_size": 32,
        "routed_scaling_factor": 2.5,
    }
    dropped = "conv_kernel_size max_position_embeddings layer_types n_routed_experts route_scale"
    dropped += " sliding_window_size moe_intermediate_size"
    path = checkpoint("inkling2")
    other = changed(path, tmp_path, *dropped.split(), **fields)
    assert_equal(other, reference(path, torch.float64))


@pytest.mark.parametrize("is_cut", [False, True])
def test_rows_without_tokens(checkpoint: Any, tmp_path: Path, is_cut: bool) -> None:
    """Embedding and head have some, or the head has none."""
    path = checkpoint("inkling2")
    changed(path, tmp_path, unpadded_vocab_size=TOKENS)
    if is_cut:
        tensors = load_file(path / WEIGHTS)
        head = "model.llm.unembed.weight"
        tensors[head] = tensors[head][:TOKENS].clone()
        (tmp_path / WEIGHTS).unlink()
        save_file(tensors, tmp_path / WEIGHTS, {"format": "pt"})
    assert_equal(tmp_path, reference(path, torch.float64), TOKENS)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_share_out_experts(checkpoint: Any, ranks: int) -> None:
    path = checkpoint("inkling2")
    assert_ranks_agree(path, PLAIN, ranks, expert_parallel=True)


@pytest.mark.parametrize("queries", [1, 3])
@torch.inference_mode()
def test_attention_over_depth(queries: int) -> None:
    """Of more tokens than are computed at a time."""
    torch.manual_seed(3)
    hidden, blocks = 24, 3
    theirs = Inkling2BlockAttentionResidual(Inkling2TextConfig(hidden_size=hidden), queries)
    theirs.query.normal_()
    build = Build(torch.float32, CPU, Group(), Methods(Unquantized(torch.float32, CPU)))
    ours = DepthAttention(build, hidden, queries)
    ours.query.copy_(theirs.query)
    streams, newest = 9 * torch.randn(ROWS + 7, blocks, hidden), torch.randn(ROWS + 7, hidden)
    for count in (0, 1, blocks):
        expected = theirs(streams[None, :, :count], newest[None])
        for found, one in zip(ours(streams[:, :count], newest), expected, strict=True):
            torch.testing.assert_close(found, one[0], rtol=0, atol=1e-5)


@torch.inference_mode()
def test_streams_begin_as_the_embedding() -> None:
    build = Build(torch.float32, CPU, Group(), Methods(Unquantized(torch.float32, CPU)))
    ends = DepthStreams(build, ResidualSpec(8, NormSpec(1e-6)))
    ends.query.zero_()
    x = torch.randn(5, 8)
    begun = ends.begin(Residual(x, None, False))
    assert torch.equal(begun.x, x[:, None])
    read = ends.end(Residual(torch.stack((x, -x, x), 1), None, False)).x
    expected = torch.nn.functional.rms_norm(x, (8,), eps=1e-6) / 3
    torch.testing.assert_close(read, expected)


def test_every_rank_keeps_the_inputs_of_outputs() -> None:
    raw = {"architectures": ["Inkling2ForCausalLM"], **SHAPE, **CASES["inkling2"]}
    layers = [layer.attention for layer in read_specification(family(raw), raw).layers]
    for ranks, kept in ((1, 2 * 32), (2, 32), (4, 32)):
        assert isinstance(layers[2], ConvolutionsSpec)
        assert layers[2].state(ranks).channels == 2 * kept + 2 * SHAPE["hidden_size"]


@pytest.mark.parametrize(("quantize", "most"), [("int4", 0.6), ("fp8", 0.2), ("eetq", 0.06)])
def test_it_is_quantized_while_loading(tmp_path: Path, quantize: str, most: float) -> None:
    """The logits are near those of the floats, but not equal."""
    path = write(tmp_path / "model", **{**CASES["inkling2"], **WIDE})
    assert 1e-3 < error_of_quantizing(path, quantize) < most

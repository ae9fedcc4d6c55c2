"""Every family on several ranks, dense families in other dtypes, and other names and layouts of
checkpoints; `test_families.py` has logits, tokens, chunks, prefix hits and preemption."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import CASES, DENSE, SHAPE, VOCAB, generate, prompt, reference, write
from driver import Driver, Running, greedy
from image_checkpoints import KINDS
from library_types import DOCUMENT
from local import LocalWorker, Refused, every_run
from penstock.config import read_config
from penstock.faults import BadModel, BadSetting
from penstock.models import FAMILIES, architectures, family, native, read_specification
from penstock.parallel import Group
from penstock.quant import Methods, Unquantized
from ranks import LENGTH, Threads, assert_ranks_agree, prefilled
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
)

PLAIN = Methods(Unquantized(torch.float64, torch.device("cpu")))
# Families without a case, because transformers writes other names, or text as a part of a model
# with images: the files that run them.
OTHERS = {
    "Apertus1p5ForConditionalGeneration": "test_dense_families.py",
    "BaiChuanForCausalLM": "test_alibi.py",
    "BaichuanForCausalLM": "test_alibi.py",
    "BailingMoeV2ForCausalLM": "test_bailing_moe.py",
    "Gemma3ForConditionalGeneration": "test_families.py",
    "Gemma3nForConditionalGeneration": "test_dense_families.py",
    "Gemma4ForConditionalGeneration": "test_dense_families.py",
    "Gemma4UnifiedForConditionalGeneration": "test_dense_families.py",
    "Inkling2ForConditionalGeneration": "test_inkling2.py",
    "InklingForConditionalGeneration": "test_inkling.py",
    "InternLM2ForCausalLM": "test_dense_families.py",
    "InternLMForCausalLM": "test_dense_families.py",
    "InternLM3ForCausalLM": "test_dense_families.py",
    "LLaMAForCausalLM": "test_dense_families.py",
    "Llama4ForConditionalGeneration": "test_families.py",
    "MiniMaxText01ForCausalLM": "test_minimax_text.py",
    "Mistral3ForConditionalGeneration": "test_dense_families.py",
    "QWenLMHeadModel": "test_long_rope.py",
    "Qwen3_5ForConditionalGeneration": "test_dense_families.py",
    "Qwen3_5MoeForConditionalGeneration": "test_dense_families.py",
    "Qwen4ExpForConditionalGeneration": "test_qwen4_exp.py",
    "StableLMEpochForCausalLM": "test_dense_families.py",
    "Step3p5ForCausalLM": "../worker/image_checkpoints.py",
}
# Cases that four ranks cannot share, and the number that is to blame.
NOT_ON_FOUR_RANKS = {
    "deepseek-v4": "o_groups is 2",
    "qwen3_5-moe": "linear_num_key_heads is 2",
    "qwen3_next": "linear_num_key_heads is 2",
    "zaya-biases": "num_attention_heads is 6",
}
Checkpoints = Callable[[str], Path]


def changed(path: Path, directory: Path, *dropped: str, **fields: Any) -> Path:
    """The checkpoint with other fields of config.json, or without some."""
    directory.mkdir(exist_ok=True)
    for file in path.glob("*.safetensors"):
        (directory / file.name).symlink_to(file)
    config = {**json.loads((path / "config.json").read_text()), **fields}
    kept = {name: value for name, value in config.items() if name not in dropped}
    (directory / "config.json").write_text(json.dumps(kept))
    return directory


def run(path: Path, sequence: Running, dtype: str = "float64") -> torch.Tensor:
    """Runs one sequence to its end; the logits of its steps."""
    worker = LocalWorker()
    driver = Driver([worker], worker.load(path, dtype=dtype))
    logits = worker.record_logits()
    driver.enter(sequence)
    driver.finish([sequence])
    driver.stream.close()
    return torch.cat(logits)


def test_every_family_is_run(checkpoint: Checkpoints) -> None:
    """Under one of its architectures, where it has several. All tests of families run all cases."""
    of_cases = {architectures(read_config(checkpoint(case)))[0] for case in CASES}
    with_images = {model.__name__ for model, *_ in KINDS.values()}
    assert not OTHERS.keys() & (of_cases | with_images)
    run_ones = {FAMILIES[name] for name in OTHERS.keys() | of_cases | with_images}
    assert set(FAMILIES.values()) == run_ones
    for name, file in OTHERS.items():
        lines = (Path(__file__).parent / file).read_text().splitlines()
        assert any(name in line and f'"{file}"' not in line for line in lines), (name, file)


def test_the_documented_tables_have_every_architecture() -> None:
    tables = DOCUMENT.read_text(encoding="utf-8").partition("## Limits of families")[0]
    rows = [row.split("|")[1] for row in tables.splitlines() if row.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == FAMILIES.keys()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_ranks_compute_what_one_does(checkpoint: Checkpoints, case: str, ranks: int) -> None:
    """Of four query heads and at most two KV heads in most cases: then four ranks have each KV head
    twice."""
    path, number = checkpoint(case), NOT_ON_FOUR_RANKS.get(case)
    if ranks == 4 and number is not None:
        with pytest.raises(BadSetting, match=f"{number}, which 4 ranks cannot share equally"):
            assert_ranks_agree(path, PLAIN, ranks)
    else:
        assert_ranks_agree(path, PLAIN, ranks)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 5e-4), ("bfloat16", 1.0)])
@pytest.mark.parametrize("case", DENSE)
def test_dtypes_of_the_cpu(
    checkpoint: Checkpoints, case: str, dtype: str, tolerance: float
) -> None:
    """Options that the CPU's kernels do not support use the references."""
    path, ids = checkpoint(case), prompt(90)
    logits = run(path, greedy(ids, 1), dtype)
    with torch.inference_mode():
        exact = reference(path, torch.float64)(torch.tensor([ids])).logits[0, -1]
    assert (logits[0].double() - exact).abs().max() < tolerance


@pytest.mark.parametrize("ranks", [1, 2])
def test_rows_in_place_of_embeddings(checkpoint: Checkpoints, ranks: int) -> None:
    """They are taken as they are: not scaled, as the embedding's rows are, nor summed."""
    path = checkpoint("granite")
    cls: Any = family(read_config(path))
    weight = load_file(path / "model.safetensors")["model.embed_tokens.weight"].double()
    scaled = weight[prompt(LENGTH)] * CASES["granite"]["embedding_multiplier"]

    @torch.inference_mode()
    def work(group: Group) -> Any:
        return prefilled(path, cls, group, PLAIN, scaled.clone())

    with torch.inference_mode():
        expected = prefilled(path, cls, Group(), PLAIN)
    for found in Threads(ranks).run(work):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("case", "prefix"), [("gpt2", "transformer."), ("opt", "model.")])
def test_names_without_a_prefix(
    checkpoint: Checkpoints, tmp_path: Path, case: str, prefix: str
) -> None:
    """As the first checkpoints are stored, GPT-2's with their masks."""
    path = checkpoint(case)
    tensors = load_file(path / "model.safetensors")
    found = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    if case == "gpt2":
        found["h.0.attn.bias"] = torch.ones(1, 1, 8, 8)
    save_file(found, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    sequence = greedy(prompt(40), 16)
    run(tmp_path, sequence)
    assert sequence.tokens == generate(reference(path, torch.float64), prompt(40), 16)


@pytest.mark.parametrize(("case", "head"), [("gpt2", "lm_head"), ("biogpt", "output_projection")])
def test_a_tied_embedding_may_be_stored_twice(
    checkpoint: Checkpoints, tmp_path: Path, case: str, head: str
) -> None:
    """Under the head's name too, as pickles of these models have it; nothing reads the copy."""
    path = checkpoint(case)
    tensors = load_file(path / "model.safetensors")
    copy = torch.zeros(VOCAB, SHAPE["hidden_size"])
    save_file({**tensors, f"{head}.weight": copy}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    torch.testing.assert_close(
        run(tmp_path, greedy(prompt(40), 2)), run(path, greedy(prompt(40), 2))
    )


def test_phi4_multimodals_published_names(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """Adapters of images and speech lie beside the matrices of text; matrices of speech have other
    names too."""
    path, matrix = checkpoint("phi4_multimodal"), r"(model\.layers\..*_proj)\.weight"
    found = {}
    for name, tensor in load_file(path / "model.safetensors").items():
        if module := re.fullmatch(matrix, name):
            found[f"{module[1]}.base_layer.weight"] = tensor
            for part in ("lora_A.vision", "lora_A.speech", "lora_B.vision", "lora_B.speech"):
                found[f"{module[1]}.{part}.weight"] = torch.ones(2, 2)
        else:
            found[name.replace(".self_attn.o_proj.", ".self_attn.linear_out.")] = tensor
    save_file(found, tmp_path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    rope, images = config.pop("rope_parameters"), {"image_embd_layer": {"crop_size": 448}}
    assert config.pop("vision_config") and config.pop("audio_config")
    config |= {"architectures": ["Phi4MMForCausalLM"], "model_type": "phi4mm"}
    config |= {"rope_theta": rope.pop("rope_theta"), "audio_processor": {"name": "cascades"}}
    config |= {"rope_scaling": {**rope, "type": rope.pop("rope_type")}, "embd_layer": images}
    config |= {name: {"r": 320, "layer": ".*"} for name in ("speech_lora", "vision_lora")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    sequence = greedy(prompt(90), 16)
    torch.testing.assert_close(run(tmp_path, sequence), run(path, greedy(prompt(90), 16)))
    assert sequence.tokens == generate(reference(path, torch.float64), prompt(90), 16)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rope", [None, {"type": "dynamic", "factor": 2.0}])
def test_internlm2_is_a_llama_in_another_layout(
    tmp_path: Path, bias: bool, rope: dict[str, Any] | None
) -> None:
    """Dynamic NTK changes nothing within the model's length."""
    llama = write(tmp_path / "llama", model_type="llama", attention_bias=bias, mlp_bias=False)
    tensors = load_file(llama / "model.safetensors")
    renames = {
        "model.embed_tokens": "model.tok_embeddings",
        "lm_head": "output",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
    }
    found = {}
    for name, tensor in tensors.items():
        if "q_proj" in name:
            parts = [
                tensors[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")
            ]
            by_group = [part.view(2, -1, 16, *part.shape[1:]) for part in parts]
            new = name.replace("self_attn.q_proj", "attention.wqkv")
            found[new] = torch.cat(by_group, 1).flatten(0, 2).contiguous()
        elif "_proj" not in name or not re.search("k_proj|v_proj", name):
            for old, new in renames.items():
                name = name.replace(old, new)
            found[name] = tensor
    internlm = tmp_path / "internlm"
    internlm.mkdir()
    save_file(found, internlm / "model.safetensors")
    config = json.loads((llama / "config.json").read_text())
    config |= {"architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2"}
    config |= {"bias": bias, "attn_implementation": "eager", "rope_scaling": rope}
    config.pop("attention_bias")
    (internlm / "config.json").write_text(json.dumps(config))
    runs = every_run(internlm, prompt(90))
    assert runs.tokens() == generate(reference(llama, torch.float64), prompt(90), 24)


def test_text_of_apertus_1_5(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """Beside the tokenizers of images and audio."""
    path = checkpoint("apertus1p5")
    found = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in load_file(path / "model.safetensors").items()
    }
    found |= {f"model.{kind}_tokenizer.weight": torch.ones(2) for kind in ("vision", "audio")}
    save_file(found, tmp_path / "model.safetensors")
    config = {"architectures": ["Apertus1p5ForConditionalGeneration"], "model_type": "apertus1p5"}
    config |= {"text_config": json.loads((path / "config.json").read_text()), "audio_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    runs = every_run(tmp_path, prompt(90))
    assert runs.tokens() == generate(reference(path, torch.float64), prompt(90), 24)


def test_internlm3_is_a_llama(tmp_path: Path) -> None:
    llama = write(tmp_path / "llama", model_type="llama", head_dim=32, rms_norm_eps=1e-5)
    fields = {"architectures": ["InternLM3ForCausalLM"], "qkv_bias": False, "bias": False}
    runs = every_run(changed(llama, tmp_path / "internlm", **fields), prompt(90))
    assert runs.tokens() == generate(reference(llama, torch.float64), prompt(90), 24)


LLAMA = "LlamaForCausalLM"
DYNAMIC = {"type": "dynamic", "base": 10000}
# Architecture, model_type, case of the same model, and fields in the place of others.
OTHER_NAMES: list[tuple[str, str, str, dict[str, Any], list[str]]] = [
    ("AquilaForCausalLM", "aquila", "llama2", {}, []),
    ("LLaMAForCausalLM", "llama", "llama2",
     {"max_sequence_length": 512, "pad_token_id": -1}, ["max_position_embeddings"]),
    ("LLaMAForCausalLM", "llama", "llama2", {}, ["max_position_embeddings"]),
    ("XverseForCausalLM", "xverse", "llama2",
     {"max_tokenizer_truncation": 384, "quantization_bit": 0}, []),
    ("InternLMForCausalLM", "internlm", "llama2", {"bias": False, "rotary": DYNAMIC},
     ["rope_parameters", "num_key_value_heads"]),
    ("InternLMForCausalLM", "internlm", "llama2",
     {"bias": False, "rotary": {"type": "origin", "base": 10000}}, ["rope_parameters"]),
    ("InternLMForCausalLM", "internlm", "llama-attention-bias", {"bias": True}, []),
    ("InternLMForCausalLM", "internlm", "llama-attention-bias",
     {"rotary": {**DYNAMIC, "scaling_factor": 2.0}}, []),
    ("StableLMEpochForCausalLM", "stablelm_epoch", "stablelm",
     {"norm_eps": 1e-3, "rope_pct": 0.5, "num_heads": 4, "rope_theta": 9000,
      "rotary_scaling_factor": 1.0},
     ["layer_norm_eps", "rope_parameters"]),
]  # fmt: skip
OF_OTHER_NAMES: dict[str, dict[str, Any]] = {
    "llama2": {"model_type": "llama", "num_key_value_heads": 4},
    "llama-attention-bias": {"model_type": "llama", "attention_bias": True},
    "stablelm": {**CASES["stablelm"], "layer_norm_eps": 1e-3},
}


@pytest.mark.parametrize(("name", "model_type", "case", "fields", "dropped"), OTHER_NAMES)
def test_a_family_under_another_name(
    name: str,
    model_type: str,
    case: str,
    fields: dict[str, Any],
    dropped: list[str],
    tmp_path: Path,
) -> None:
    """Older checkpoints, and models that differ from a family in nothing else."""
    original = write(tmp_path / "original", **OF_OTHER_NAMES[case])
    fields = {"architectures": [name], "model_type": model_type, **fields}
    path = changed(original, tmp_path / "other", "attention_bias", *dropped, **fields)
    assert every_run(path, prompt(90)).tokens() == generate(
        reference(original, torch.float64), prompt(90), 24
    )
    implied = LLAMA if model_type == "llama" else name
    assert native({"model_type": model_type}) is family({"architectures": [implied]})
    assert native(fields) is not None


def test_dynamic_rope_of_internlm_extends_the_length() -> None:
    rotary = {"type": "dynamic", "base": 9000, "scaling_factor": 2.0}
    raw = {**SHAPE, "architectures": ["InternLMForCausalLM"], "rotary": rotary}
    spec = read_specification(family(raw), raw)
    rope = spec.softmax_layers[0].rope
    assert rope is not None and spec.extends
    assert (rope.theta, rope.numbers["factor"]) == (9000, 2)
    with pytest.raises(BadModel, match="rope_type 'xpos' is not supported"):
        read_specification(family(raw), {**raw, "rotary": {"type": "xpos"}})


@pytest.mark.parametrize("case", ["mistral-window", "ministral3", "mistral4"])
def test_text_of_mistrals_checkpoints_with_images(tmp_path: Path, case: str) -> None:
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1} | {
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
        "head_dim": 16,
    }
    torch.manual_seed(7)
    whole = Mistral3Config(
        text_config={**SHAPE, **CASES[case]}, vision_config=vision, tie_word_embeddings=False
    )
    model = Mistral3ForConditionalGeneration(whole).eval()
    model.save_pretrained(tmp_path)
    runs = every_run(tmp_path, prompt(90), dtype="float32")
    assert runs.tokens() == generate(model, prompt(90), 24)


@pytest.mark.parametrize("case", ["gemma4-shared", "gemma4-moe"])
def test_text_of_gemma4s_checkpoints_with_images(tmp_path: Path, case: str) -> None:
    """Nothing reads the projections that layers with a shared cache may have."""
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1} | {
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
    }
    torch.manual_seed(7)
    whole = Gemma4Config(text_config={**SHAPE, **CASES[case]}, vision_config=vision)
    model = Gemma4ForConditionalGeneration(whole).eval()
    model.save_pretrained(tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    for name, tensor in list(found.items()):
        if case == "gemma4-shared" and ".layers.0.self_attn.k_" in name:
            found[name.replace(".0.", ".3.")] = tensor.clone()
    save_file(found, tmp_path / "model.safetensors", {"format": "pt"})
    sequence = greedy(prompt(90), 16)
    run(tmp_path, sequence, "float32")
    assert sequence.tokens == generate(model, prompt(90), 16)


@pytest.mark.parametrize(
    ("case", "name", "model_type"),
    [
        ("gemma3n", "Gemma3nForConditionalGeneration", "gemma3n"),
        ("gemma4-unified", "Gemma4UnifiedForConditionalGeneration", "gemma4_unified"),
    ],
)
def test_text_beside_parts_that_are_not_loaded(
    checkpoint: Checkpoints, tmp_path: Path, case: str, name: str, model_type: str
) -> None:
    """Nothing reads the projections that Gemma 3n's layers with a shared cache may have."""
    text = checkpoint(case)
    found = {
        tensor_name.replace("model.", "model.language_model.", 1): tensor
        for tensor_name, tensor in load_file(text / "model.safetensors").items()
    }
    found["model.vision_tower.weight"] = torch.zeros(2)
    if case == "gemma3n":
        found["model.language_model.layers.4.self_attn.k_proj.weight"] = torch.zeros(2)
    save_file(found, tmp_path / "model.safetensors")
    whole = {
        "architectures": [name],
        "model_type": model_type,
        "text_config": json.loads((text / "config.json").read_text()),
        "vision_config": {"model_type": f"{model_type}_vision"},
    }
    (tmp_path / "config.json").write_text(json.dumps(whole))
    torch.testing.assert_close(
        run(tmp_path, greedy(prompt(40), 2)), run(text, greedy(prompt(40), 2))
    )


@pytest.mark.parametrize("layers", ["2", "0123"])
def test_olmo_hybrids_other_names_of_norms(
    checkpoint: Checkpoints, tmp_path: Path, layers: str
) -> None:
    """Of the layer with attention, or of all layers."""
    path, older = changed(checkpoint("olmo_hybrid"), tmp_path / "x"), tmp_path / "older"
    others = {"attention_layer_norm": "input_layernorm"}
    others["feedforward_layer_norm"] = "post_attention_layernorm"
    found = {}
    for name, tensor in load_file(path / "model.safetensors").items():
        _, _, layer, rest = f"{name}...".split(".", 3)
        module = rest.partition(".")[0]
        chosen = layer in layers and module in others
        found[name.replace(module, others[module]) if chosen else name] = tensor
    older.mkdir()
    save_file(found, older / "model.safetensors")
    (older / "config.json").write_text((path / "config.json").read_text())
    torch.testing.assert_close(run(older, greedy(prompt(40), 2)), run(path, greedy(prompt(40), 2)))


def test_kimi_linears_published_names(checkpoint: Checkpoints, tmp_path: Path) -> None:
    """transformers writes dense layers under the name of those with experts."""
    path, others = checkpoint("kimi_linear"), tmp_path / "others"
    tensors, dense = load_file(path / "model.safetensors"), r"block_sparse_moe\.(?=(gate|up|down)_)"
    found = {re.sub(dense, "mlp.", name): tensor for name, tensor in tensors.items()}
    assert len(found.keys() - tensors.keys()) == 6
    others.mkdir()
    save_file(found, others / "model.safetensors")
    (others / "config.json").write_text((path / "config.json").read_text())
    torch.testing.assert_close(run(others, greedy(prompt(40), 2)), run(path, greedy(prompt(40), 2)))


@pytest.mark.parametrize("case", ["qwen3_5", "qwen3_5-moe"])
@pytest.mark.parametrize("stacked", [False, True])
def test_text_of_qwens_checkpoints_with_images(tmp_path: Path, case: str, stacked: bool) -> None:
    """Names with a prefix, a vision tower and a layer for multi-token prediction that are not
    loaded; a tensor may hold all experts of a layer, as the published checkpoints have it."""
    cls, config_class = (
        (Qwen3_5MoeForConditionalGeneration, Qwen3_5MoeConfig)
        if case.endswith("moe")
        else (Qwen3_5ForConditionalGeneration, Qwen3_5Config)
    )
    vision = {"hidden_size": 32, "intermediate_size": 32, "depth": 1, "num_heads": 2}
    vision |= {"out_hidden_size": 64, "patch_size": 4, "num_position_embeddings": 16}
    torch.manual_seed(7)
    text = {**SHAPE, **CASES[case], "pad_token_id": None}
    whole = config_class(text_config=text, vision_config=vision)
    model = cls(whole).eval()
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["mtp.fc.weight"] = torch.ones(2, 2)
    if stacked:
        tensors = _stacked(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    sequence = greedy(prompt(90), 16)
    run(tmp_path, sequence, "float32")
    assert sequence.tokens == generate(model, prompt(90), 16)


def _stacked(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors with those of a layer's experts in one."""
    found: dict[str, torch.Tensor] = {}
    experts: dict[str, list[torch.Tensor]] = {}
    for name in sorted(tensors):
        match = re.fullmatch(r"(.*\.experts)\.\d+\.(gate|up|down)_proj\.weight", name)
        if match is None:
            found[name] = tensors[name]
        elif match[2] == "gate":
            both = tensors[name], tensors[name.replace("gate_proj", "up_proj")]
            experts.setdefault(match[1] + ".gate_up_proj", []).append(torch.cat(both))
        elif match[2] == "down":
            experts.setdefault(match[1] + ".down_proj", []).append(tensors[name])
    return found | {name: torch.stack(parts) for name, parts in experts.items()}


def test_quantized_matrices_in_another_layout_are_refused(checkpoint: Checkpoints) -> None:
    """Their packed numbers would have to be permuted."""
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
    plain = checkpoint("gpt_neox")
    path = changed(plain, plain.parent / "gpt_neox-gptq", quantization_config=gptq)
    with pytest.raises(Refused, match="quantized weights are not supported in the layout of"):
        LocalWorker().load(path)


@pytest.mark.parametrize("case", ["falcon-40b", "gpt_neox", "gpt2-scales"])
def test_other_layouts_are_quantized_while_loading(checkpoint: Checkpoints, case: str) -> None:
    """The matrices of layers to 8 bits; the head stays as it is, whatever its name."""
    path, ids, worker = checkpoint(case), prompt(90), LocalWorker()
    driver = Driver([worker], worker.load(path, quantize="eetq"))
    logits, sequence = worker.record_logits(), greedy(ids, 1)
    driver.enter(sequence)
    driver.finish([sequence])
    driver.stream.close()
    model = worker.runner.rank_model.model
    assert model.head.method is not model.blocks[0].attention.qkv.method
    with torch.inference_mode():
        exact = reference(path, torch.float64)(torch.tensor([ids])).logits[0, -1]
    error = (logits[0][0].double() - exact).abs().mean()
    assert 0 < error < 0.05 * exact.abs().mean()

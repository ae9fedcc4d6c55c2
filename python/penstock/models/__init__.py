"""Model families, by the architecture in config.json."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from penstock.config import ReadFields, Specification
from penstock.faults import BadModel
from penstock.layers import Build
from penstock.layers.attention import StepContext
from penstock.models.model_types import ARCHITECTURES, OWN
from penstock.weights import Shapes, Stage, Target

FAMILIES: dict[str, str] = {
    "AXK1ForCausalLM": "axk1:Axk1",
    "AXK2ForCausalLM": "axk2:Axk2",
    "AfmoeForCausalLM": "afmoe:Afmoe",
    "Apertus1p5ForConditionalGeneration": "apertus15:Apertus15",
    "Apertus1p5TextForCausalLM": "apertus15:Apertus15Text",
    "ApertusForCausalLM": "apertus:Apertus",
    "AquilaForCausalLM": "llama:Llama",
    "ArceeForCausalLM": "arcee:Arcee",
    "BaiChuanForCausalLM": "baichuan:Baichuan",
    "BaichuanForCausalLM": "baichuan:Baichuan2",
    "BailingHybridForCausalLM": "bailing_hybrid:BailingHybrid",
    "BailingMoeForCausalLM": "bailing_moe:BailingMoe",
    "BailingMoeV2ForCausalLM": "bailing_moe:BailingMoe",
    "BambaForCausalLM": "bamba:Bamba",
    "BioGptForCausalLM": "biogpt:BioGpt",
    "BloomForCausalLM": "bloom:Bloom",
    "CodeGenForCausalLM": "codegen:CodeGen",
    "Cohere2ForCausalLM": "cohere:Cohere2",
    "Cohere2MoeForCausalLM": "cohere2_moe:Cohere2Moe",
    "CohereForCausalLM": "cohere:Cohere",
    "CwmForCausalLM": "cwm:Cwm",
    "DbrxForCausalLM": "dbrx:Dbrx",
    "DeepseekV2ForCausalLM": "deepseek:DeepseekV2",
    "DeepseekV32ForCausalLM": "deepseek_v32:DeepseekV32",
    "DeepseekV3ForCausalLM": "deepseek:DeepseekV3",
    "DeepseekV4ForCausalLM": "deepseek_v4:DeepseekV4",
    "Dots1ForCausalLM": "dots1:Dots1",
    "Dots3NoteForCausalLM": "dots3:Dots3",
    "Dots3NoteForConditionalGeneration": "dots3:Dots3",
    "Ernie4_5ForCausalLM": "ernie:Ernie45",
    "Ernie4_5_MoeForCausalLM": "ernie_moe:Ernie45Moe",
    "Exaone4ForCausalLM": "exaone4:Exaone4",
    "Exaone4_5_ForConditionalGeneration": "exaone4:Exaone45",
    "ExaoneForCausalLM": "exaone:Exaone",
    "ExaoneMoEForCausalLM": "exaone_moe:ExaoneMoe",
    "ExaoneMoeForCausalLM": "exaone_moe:ExaoneMoe",
    "FalconForCausalLM": "falcon:Falcon",
    "FalconH1ForCausalLM": "falcon_h1:FalconH1",
    "FalconMambaForCausalLM": "mamba:FalconMamba",
    "FlexOlmoForCausalLM": "flex_olmo:FlexOlmo",
    "FlintForCausalLM": "flint:Flint",
    "GPT2LMHeadModel": "gpt2:Gpt2",
    "GPTBigCodeForCausalLM": "gpt_bigcode:GptBigCode",
    "GPTJForCausalLM": "gptj:GptJ",
    "GPTNeoForCausalLM": "gpt_neo:GptNeo",
    "GPTNeoXForCausalLM": "gpt_neox:GptNeoX",
    "Gemma2ForCausalLM": "gemma2:Gemma2",
    "Gemma3ForCausalLM": "gemma3:Gemma3Text",
    "Gemma3ForConditionalGeneration": "gemma3:Gemma3",
    "Gemma3nForCausalLM": "gemma3n:Gemma3nText",
    "Gemma3nForConditionalGeneration": "gemma3n:Gemma3n",
    "Gemma4ForCausalLM": "gemma4:Gemma4Text",
    "Gemma4ForConditionalGeneration": "gemma4:Gemma4",
    "Gemma4UnifiedForCausalLM": "gemma4:Gemma4UnifiedText",
    "Gemma4UnifiedForConditionalGeneration": "gemma4:Gemma4Unified",
    "GemmaForCausalLM": "gemma:Gemma",
    "Glm4ForCausalLM": "glm:Glm4",
    "Glm4MoeForCausalLM": "glm4_moe:Glm4Moe",
    "Glm4MoeLiteForCausalLM": "glm4_moe_lite:Glm4MoeLite",
    "GlmMoeDsaForCausalLM": "deepseek_v32:GlmMoeDsa",
    "Glm4vForConditionalGeneration": "glm4v:Glm4v",
    "Glm4vMoeForConditionalGeneration": "glm4v:Glm4vMoe",
    "Glm5NextForConditionalGeneration": "glm5_next:Glm5Next",
    "GlmForCausalLM": "glm:Glm",
    "GptOssForCausalLM": "gpt_oss:GptOss",
    "GraniteForCausalLM": "granite:Granite",
    "GraniteMoeForCausalLM": "granite_moe:GraniteMoe",
    "GraniteMoeHybridForCausalLM": "granite_hybrid:GraniteHybrid",
    "GraniteMoeSWAForCausalLM": "granite_swa:GraniteMoeSwa",
    "GraniteMoeSharedForCausalLM": "granite_moe:GraniteMoe",
    "GraniteSWAForCausalLM": "granite_swa:GraniteSwa",
    "HYV3ForCausalLM": "hy_v3:HyV3",
    "HeliumForCausalLM": "helium:Helium",
    "HyperCLOVAXForCausalLM": "hyperclovax:HyperClovaX",
    "HYV4ForCausalLM": "hy_v4:HyV4",
    "HunYuanDenseV1ForCausalLM": "hunyuan:HunYuan",
    "HunYuanMoEV1ForCausalLM": "hunyuan_moe:HunYuanMoe",
    "Inkling2ForCausalLM": "inkling2:Inkling2Text",
    "Inkling2ForConditionalGeneration": "inkling2:Inkling2",
    "InklingForCausalLM": "inkling:InklingText",
    "InklingForConditionalGeneration": "inkling:Inkling",
    "InternLM2ForCausalLM": "internlm:InternLM2",
    "InternLM3ForCausalLM": "internlm:InternLM3",
    "InternLMForCausalLM": "internlm:InternLM",
    "Jais2ForCausalLM": "jais2:Jais2",
    "JambaForCausalLM": "jamba:Jamba",
    "KimiK25ForConditionalGeneration": "kimi:KimiK25",
    "KimiLinearForCausalLM": "kimi_linear:KimiLinear",
    "Kimi_K25ForConditionalGeneration": "kimi:KimiK25",
    "Kolibri1ForCausalLM": "kolibri:Kolibri",
    "LLaMAForCausalLM": "llama:FirstLlama",
    "LagunaForCausalLM": "laguna:Laguna",
    "Lfm2ForCausalLM": "lfm2:Lfm2",
    "Lfm2MoeForCausalLM": "lfm2_moe:Lfm2Moe",
    "Lfm3ForCausalLM": "lfm3:Lfm3",
    "Llama4ForCausalLM": "llama4:Llama4Text",
    "Llama4ForConditionalGeneration": "llama4:Llama4",
    "LlamaForCausalLM": "llama:Llama",
    "LongcatFlashForCausalLM": "longcat:LongcatFlash",
    "MPTForCausalLM": "mpt:Mpt",
    "Mamba2ForCausalLM": "mamba2:Mamba2",
    "MambaForCausalLM": "mamba:Mamba",
    "MellumForCausalLM": "mellum:Mellum",
    "MiMoV2FlashForCausalLM": "mimo:MiMoV2Flash",
    "MiniCPM3ForCausalLM": "minicpm3:MiniCpm3",
    "MiniMaxForCausalLM": "minimax_text:MiniMaxText",
    "MiniMaxM1ForCausalLM": "minimax_text:MiniMaxText01",
    "MiniMaxM2ForCausalLM": "minimax:MiniMaxM2",
    "MiniMaxM3SparseForConditionalGeneration": "minimax_m3:MiniMaxM3",
    "MiniMaxM3VLForCausalLM": "minimax_m3:MiniMaxM3Text",
    "MiniMaxText01ForCausalLM": "minimax_text:MiniMaxText01",
    "Ministral3ForCausalLM": "ministral:Ministral3",
    "MinistralForCausalLM": "ministral:Ministral",
    "Mistral3ForConditionalGeneration": "mistral3:Mistral3",
    "Mistral4ForCausalLM": "mistral4:Mistral4",
    "MistralForCausalLM": "llama:Mistral",
    "MixtralForCausalLM": "mixtral:Mixtral",
    "MllamaForConditionalGeneration": "mllama:Mllama",
    "MptForCausalLM": "mpt:Mpt",
    "MuseGlimmerForConditionalGeneration": "muse_glimmer:MuseGlimmer",
    "NanoChatForCausalLM": "nanochat:NanoChat",
    "NemotronForCausalLM": "nemotron:Nemotron",
    "NemotronHForCausalLM": "nemotron_h:NemotronH",
    "OPTForCausalLM": "opt:Opt",
    "Olmo2ForCausalLM": "olmo:Olmo2",
    "Olmo3ForCausalLM": "olmo:Olmo3",
    "OlmoForCausalLM": "olmo1:Olmo1",
    "OlmoHybridForCausalLM": "olmo_hybrid:OlmoHybrid",
    "OlmoeForCausalLM": "olmoe:Olmoe",
    "Phi3ForCausalLM": "phi3:Phi3",
    "Phi4MMForCausalLM": "phi4_multimodal:Phi4Multimodal",
    "Phi4MultimodalForCausalLM": "phi4_multimodal:Phi4Multimodal",
    "PhiForCausalLM": "phi:Phi",
    "PhiMoEForCausalLM": "phimoe:Phimoe",
    "PhimoeForCausalLM": "phimoe:Phimoe",
    "Qwen2VLForConditionalGeneration": "qwen_vl:Qwen2Vl",
    "Qwen2_5_VLForConditionalGeneration": "qwen_vl:Qwen2Vl",
    "QWenLMHeadModel": "qwen1:Qwen1",
    "Qwen2ForCausalLM": "qwen:Qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe:Qwen2Moe",
    "Qwen3ForCausalLM": "qwen:Qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe:Qwen3Moe",
    "Qwen3NextForCausalLM": "qwen_hybrid_moe:Qwen3Next",
    "Qwen3VLForConditionalGeneration": "qwen_vl:Qwen3Vl",
    "Qwen3VLMoeForConditionalGeneration": "qwen_vl:Qwen3VlMoe",
    "Qwen3_5ForCausalLM": "qwen_hybrid:Qwen35Text",
    "Qwen3_5ForConditionalGeneration": "qwen_hybrid:Qwen35",
    "Qwen3_5MoeForCausalLM": "qwen_hybrid_moe:Qwen35MoeText",
    "Qwen3_5MoeForConditionalGeneration": "qwen_hybrid_moe:Qwen35Moe",
    "Qwen4ExpForCausalLM": "qwen4_exp:Qwen4ExpText",
    "Qwen4ExpForConditionalGeneration": "qwen4_exp:Qwen4Exp",
    "RecurrentGemmaForCausalLM": "recurrent_gemma:RecurrentGemma",
    "SarvamMLAForCausalLM": "sarvam:SarvamMla",
    "SarvamMoEForCausalLM": "sarvam:SarvamMoe",
    "SeedOssForCausalLM": "seed_oss:SeedOss",
    "SmolLM3ForCausalLM": "smollm3:SmolLM3",
    "SolarOpenForCausalLM": "solar_open:SolarOpen",
    "StableLMEpochForCausalLM": "stablelm:StableLmEpoch",
    "StableLmForCausalLM": "stablelm:StableLm",
    "Starcoder2ForCausalLM": "starcoder2:Starcoder2",
    "Step3p5ForCausalLM": "step3p5:Step35",
    "Step3p7ForConditionalGeneration": "step3p5:Step37",
    "VaultGemmaForCausalLM": "vaultgemma:VaultGemma",
    "XverseForCausalLM": "llama:Llama",
    "YoutuForCausalLM": "youtu:Youtu",
    "Zamba2ForCausalLM": "zamba2:Zamba2",
    "ZambaForCausalLM": "zamba:Zamba",
    "ZayaForCausalLM": "zaya:Zaya",
}


class Model(Protocol):
    """The interface of a model to the worker. `Decoder` implements it."""

    older: Mapping[str, str]  # old to new: beginnings of names, or parts that begin with a dot
    ignored: tuple[str, ...]  # patterns of checkpoint tensors that are not loaded
    expert_scales: str  # the end of their names, where config.json has no weight format
    blocks: list[Any]  # the layers in their order; those of equal `kind` launch the same kernels

    def __init__(self, spec: Specification, build: Build) -> None: ...

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads config.json. Raises BadModel."""

    @classmethod
    def as_stored(cls, spec: Specification, shapes: Shapes) -> Specification:
        """Returns the specification for a checkpoint with these tensors."""

    def checkpoint_targets(self) -> dict[str, list[Target]]:
        """Returns the targets of each tensor by its name in checkpoints."""

    def stages(self) -> list[Stage]:
        """Returns how to load the model: part by part, each finished before the next one."""

    def finish(self) -> None:
        """Lets every layer repack its weights, if they were loaded all at once."""

    def kept_bytes(self) -> int:
        """Returns the bytes of the weights as they are kept on this rank."""

    def forward(
        self,
        ids: Tensor,
        context: StepContext,
        rows: Tensor | None = None,
        embeddings: Tensor | None = None,
    ) -> Tensor:
        """ids [T] -> hidden states after the last norm, [T, hidden].

        With `rows` [R] int32 (R may be 0), returns these rows alone, [R, hidden], for less work.
        `embeddings` [T, hidden], the same on every rank, replace the ids' embeddings.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] -> [R, vocab]."""


@contextmanager
def fewer_layers(model: Model) -> Iterator[None]:
    """Inside this context, `forward` runs one layer of each kind, so it launches every kernel in
    less time.

    The last layer always runs, because it computes only the requested rows.
    """
    whole = model.blocks
    kinds = {block.kind: block for block in whole[:-1]}
    model.blocks = [*kinds.values(), whole[-1]]
    try:
        yield
    finally:
        model.blocks = whole


@runtime_checkable
class LoadsItself(Protocol):
    """A model that does not load through targets."""

    def load(self, directory: Path, progress: Callable[[int, int], None]) -> int:
        """Loads the weights; returns their bytes. Raises BadModel.

        `progress` gets (bytes done, bytes in all).
        """


class Backend(Enum):
    """The implementation that runs a model."""

    AUTO = "auto"
    """Native if there is a family, else transformers."""
    NATIVE = "native"
    TRANSFORMERS = "transformers"


def model_class(raw: Mapping[str, Any], backend: Backend) -> type[Model]:
    """Returns the class for a config.json. Raises BadModel if there is no native one and `backend`
    is NATIVE."""
    if backend is Backend.NATIVE or (backend is Backend.AUTO and native(raw) is not None):
        return family(raw)
    # Imported here: the library is optional.
    fallback: type[Model] = importlib.import_module("penstock.models.fallback").Fallback
    return fallback


def native(raw: Mapping[str, Any]) -> type[Model] | None:
    """Returns the native class for a config.json; None if there is none. Raises BadModel if
    architectures is not a list."""
    for name in architectures(raw):
        if isinstance(name, str) and name in FAMILIES:
            module, _, cls = FAMILIES[name].partition(":")
            found: type[Model] = getattr(importlib.import_module(f"penstock.models.{module}"), cls)
            return found
    return None


def architectures(raw: Mapping[str, Any]) -> list[Any]:
    """Returns the architectures of a config.json, or the one that its model_type implies, where it
    has none or another family's; [] if it implies none. Raises BadModel if architectures is not a
    list."""
    names, model_type = raw.get("architectures") or [], raw.get("model_type")
    if not isinstance(names, list):
        raise BadModel(f"config.json: architectures must be a list, found {names!r}")
    if not isinstance(model_type, str):
        return names
    if model_type in OWN:
        return [OWN[model_type]]
    implied = ARCHITECTURES.get(model_type)
    return names or ([] if implied is None else [implied])


def family(raw: Mapping[str, Any]) -> type[Model]:
    """Returns the native class for a config.json. Raises BadModel if there is none."""
    found = native(raw)
    if found is None:
        known = ", ".join(sorted(FAMILIES))
        raise BadModel(
            f"config.json: architectures {architectures(raw)!r} (model_type "
            f"{raw.get('model_type')!r}) is not supported; supported: {known}"
        )
    return found


def read_specification(cls: type[Model], raw: Mapping[str, Any]) -> Specification:
    """Reads config.json by a family. Raises BadModel, also for a field that the family does not
    read, unless its value is neutral."""
    fields = ReadFields(raw)
    spec = cls.read_config(fields)
    fields.refuse_unread()
    return spec


DTYPES: dict[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}

"""Models whose text transformers knows only as, or in, a model with images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Glm5NextConfig,
    Glm5NextForConditionalGeneration,
    MiniMaxM3SparseForConditionalGeneration,
    MiniMaxM3VLConfig,
    Mistral4ForCausalLM,
    Step3p7Config,
    Step3p7ForConditionalGeneration,
)
from transformers.models.inkling2.modeling_inkling2 import Inkling2TopKRouter

STEP_VISION = {"width": 32, "layers": 1, "heads": 2, "image_size": 28, "patch_size": 14}
GLM_VISION = {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2}
GLM_VISION |= {"out_hidden_size": 16, "projection_intermediate_size": 16}
MINIMAX_VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
MINIMAX_VISION |= {"num_attention_heads": 2, "image_size": 28}
CLASSES: dict[str, Any] = {
    "glm5_next": Glm5NextForConditionalGeneration,
    "minimax_m3_vl": MiniMaxM3SparseForConditionalGeneration,
    "mistral4": Mistral4ForCausalLM,
    "step3p7": Step3p7ForConditionalGeneration,
}


def config_of(fields: Mapping[str, Any]) -> Any:
    """The configuration of a model with these fields, or of one whose text has them."""
    if fields["model_type"] == "step3p5":
        return Step3p7Config(text_config=dict(fields), vision_config=STEP_VISION)
    if fields["model_type"] == "glm5_next":
        return Glm5NextConfig(text_config=dict(fields), vision_config=GLM_VISION)
    if fields["model_type"] == "minimax_m3_vl":
        text = {**fields, "model_type": "minimax_m3_vl_text"}
        return MiniMaxM3VLConfig(
            text_config=text, vision_config=MINIMAX_VISION, projector_hidden_size=16
        )
    return AutoConfig.for_model(**fields)


def model_of(config: Any) -> Any:
    """A model with random weights."""
    return CLASSES.get(config.model_type, AutoModelForCausalLM.from_config)(config)


def class_of(config: Any) -> Any:
    """What loads a checkpoint."""
    return CLASSES.get(config.model_type, AutoModelForCausalLM)


def as_it_multiplies(model: Any) -> Any:
    """The model, whose modules that multiply float32 in any model's dtype have weights of it."""
    for module in model.modules():
        if isinstance(module, Inkling2TopKRouter):
            module.float()
    return model

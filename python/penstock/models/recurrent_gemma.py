"""RecurrentGemma: gated recurrences, and attention in windows (Griffin, arXiv:2402.19427)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from penstock import config
from penstock.config import ATTENTION, Fields, NormKind, NormSpec, Specification, layered
from penstock.models.decoder import LLAMA_NAMES, Decoder

LAYER, PATH = "model.layers.{}.temporal_block.", "blocks.{}.attention."
# Names of checkpoints in the place of those that most families have.
MODULES = {
    "self_attn": "temporal_block",
    "mlp": "mlp_block",
    "input_layernorm": "temporal_pre_norm",
    "post_attention_layernorm": "channel_pre_norm",
    "norm": "final_norm",
}
# Nothing limits a sequence. This is the length that the models were trained with.
DEFAULTS = {
    "max_position_embeddings": 8192,
    "partial_rotary_factor": 0.5,
    "tie_word_embeddings": True,
}


class RecurrentGemma(Decoder):
    """RecurrentGemma 2B and 9B."""

    names: ClassVar[Mapping[str, str]] = {
        ".".join(MODULES.get(part, part) for part in name.split(".")): path
        for name, path in LLAMA_NAMES.items()
    } | {
        LAYER + "linear_x": PATH + "inputs.x",
        LAYER + "linear_y": PATH + "inputs.beside",
        LAYER + "conv_1d": PATH + "convolution",
        LAYER + "rg_lru": PATH + "gates",
        LAYER + "linear_out": PATH + "output",
    }

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, DEFAULTS))
        fields.ignore("w_init_variance_scale", "final_w_init_variance_scale")
        fields.require("embeddings_scale_by_sqrt_dim", True)
        fields.require("hidden_activation", "gelu_pytorch_tanh")  # also of what is beside x
        hidden = fields.count("hidden_size")
        size = fields.count("intermediate_size") // 2  # that of gates and ups together
        mlp = config.MlpSpec(size, config.Activation.GELU_TANH, bias=True)
        recurrence, attention = config.read_rg_lru(fields), config.read_local_attention(fields)
        kinds = config.read_block_types(fields)
        mixers = [attention if kind == ATTENTION else recurrence for kind in kinds]
        norm = NormSpec(fields.number("rms_norm_eps", 1e-6), NormKind.RMS_PLUS_ONE)
        return config.read_decoder(
            fields,
            [config.LayerSpec(mixer, mlp) for mixer in mixers],
            config.read_residual(fields, norm=norm),
            # In bfloat16, whatever the model's dtype is.
            embedding_scale=float(torch.tensor(hidden**0.5, dtype=torch.bfloat16)),
            logits_softcap=fields.positive("logits_soft_cap", 30.0),
        )

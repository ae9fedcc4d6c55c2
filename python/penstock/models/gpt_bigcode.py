"""GPTBigCode: GPT-2 with one key and value head, and matrices of the usual order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import Fields, Specification, layered
from penstock.models.gpt2 import LAYER, Gpt2
from penstock.weights import HeadGroups, Names

RUNTIME = (  # settings of other servers and of transformers' arithmetic
    "attention_softmax_in_fp32",
    "scale_attention_softmax_in_fp32",
    "inference_runner",
    "max_batch_size",
    "pad_key_length",
    "pre_allocate_kv_cache",
    "validate_runner_input",
)


class GptBigCode(Gpt2):
    """StarCoder, StarCoderBase, SantaCoder, TinyStarCoder."""

    activation: ClassVar[str] = "gelu_pytorch_tanh"

    @classmethod
    def checkpoint_names(cls, spec: Specification) -> Names:
        """Without multi-query attention, each head's query, key and value are stored together."""
        forms = {LAYER + "attn.c_attn": HeadGroups(1, spec.head_dim)}
        return Names(cls.names, forms if spec.kv_heads == spec.heads else None)

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Adds the number of key and value heads."""
        fields = Fields(raw)
        fields.ignore(*RUNTIME, "num_key_value_heads")
        heads = {"num_key_value_heads": 1 if fields.flag("multi_query", True) else None}
        return super().read_config(layered(heads, raw))

"""Mamba-2 and Codestral Mamba: layers of Mamba-2 alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock import config
from penstock.config import Fields, Specification, layered
from penstock.faults import BadModel
from penstock.models.decoder import Decoder
from penstock.models.mamba_backbone import (
    BACKBONE_NAMES,
    LAYER,
    OLDER_NAMES,
    PATH,
    read_backbone,
    read_norm,
)

NAMES = {
    "heads": "num_heads",
    "head_dim": "head_dim",
    "groups": "n_groups",
    "state": "state_size",
    "width": "conv_kernel",
    "conv_bias": "use_conv_bias",
    "bias": "use_bias",
}
DEFAULTS = {"heads": 128, "head_dim": 64, "groups": 8, "state": 128, "width": 4}
# Nothing limits a sequence. Codestral Mamba was tested up to this length.
SIZES = {"max_position_embeddings": 262144}


class Mamba2(Decoder):
    """Codestral Mamba 7B, and Mamba-2 130M to 2.7B."""

    names: ClassVar[Mapping[str, str]] = {**BACKBONE_NAMES, LAYER + "mixer.norm": PATH + ".norm"}
    older: ClassVar[Mapping[str, str]] = OLDER_NAMES

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        fields = Fields(layered(raw, SIZES))
        # The rank is of Mamba-1; norms follow the gate, whatever the field says.
        fields.ignore("time_step_rank", "norm_before_gate", "intermediate_size")
        fields.require("hidden_act", "silu")  # of the convolution and of gates
        mixer = config.read_mamba(fields, read_norm(fields), DEFAULTS, NAMES)
        inner = fields.count("expand", 2) * fields.count("hidden_size")
        if mixer.heads * mixer.head_dim != inner:
            raise BadModel(
                f"config.json: num_heads {mixer.heads} of head_dim {mixer.head_dim} are not "
                f"{inner} elements, expand times hidden_size"
            )
        return read_backbone(fields, mixer)

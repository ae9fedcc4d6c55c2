"""Mamba and Falcon Mamba: layers of Mamba-1 alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock import config
from penstock.config import Fields, NormSpec, Specification, layered
from penstock.models.decoder import Decoder
from penstock.models.mamba_backbone import BACKBONE_NAMES, LAYER, OLDER_NAMES, PATH, read_backbone

NAMES = {
    "activation": "hidden_act",
    "expand": "expand",
    "state": "state_size",
    "rank": "time_step_rank",
    "width": "conv_kernel",
    "conv_bias": "use_conv_bias",
    "bias": "use_bias",
}
# Nothing limits a sequence. These are the lengths that the models were trained with.
SIZES = {"max_position_embeddings": 2048, "tie_word_embeddings": True}
FALCON_SIZES = {**SIZES, "max_position_embeddings": 8192}


class Mamba(Decoder):
    """Mamba 130M to 2.8B."""

    names: ClassVar[Mapping[str, str]] = {
        **BACKBONE_NAMES,
        LAYER + "mixer.x_proj": PATH + ".selection.narrow",
        LAYER + "mixer.dt_proj": PATH + ".selection.step",
    }
    older: ClassVar[Mapping[str, str]] = OLDER_NAMES

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        return _read(Fields(layered(raw, SIZES)), None)


class FalconMamba(Mamba):
    """Falcon Mamba 7B: norms without weights of what yields the steps, of B and of C."""

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """As `Mamba`."""
        fields = Fields(layered(raw, FALCON_SIZES))
        return _read(fields, NormSpec(fields.number("mixer_rms_eps", 1e-6), learned=False))


def _read(fields: Fields, norm: NormSpec | None) -> Specification:
    """A file may have the number of channels beside `expand`, which is then not right."""
    given = fields.raw.get("intermediate_size")
    channels = None if given is None else fields.count("intermediate_size")
    return read_backbone(fields, config.read_mamba1(fields, norm, NAMES, channels))

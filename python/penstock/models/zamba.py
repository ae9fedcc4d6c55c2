"""Zamba: layers of Mamba-1, some with a transformer before them whose weights all share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.config import Specification
from penstock.models.zamba2 import Zamba2
from penstock.models.zamba_config import read_zamba
from penstock.models.zamba_names import MAMBA, SHARED, Modules

MODULES = Modules(
    "shared_transf",
    {
        **MAMBA,
        # Tensors, not modules.
        "mamba.x_proj_weight": "attention.selection.narrow.weight",
        "mamba.dt_proj_weight": "attention.selection.step.weight",
        "mamba.dt_proj_bias": "attention.selection.step.bias",
    },
    {**SHARED, "feed_forward.gate_proj": "gate_up.gate", "feed_forward.up_proj": "gate_up.up"},
)


class Zamba(Zamba2):
    """Zamba 7B: one transformer, without adapters."""

    modules: ClassVar[Modules] = MODULES

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Specification:
        """Reads the fields, with transformers' defaults. Raises BadModel."""
        return read_zamba(raw)

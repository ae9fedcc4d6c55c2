"""Checkpoints in fp8 whose routed experts have 4 bits (DeepSeek-V4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.quant.fp8 import read_fp8
from penstock.quant.methods import Methods
from penstock.quant.mx import MxFp4, MxNames
from penstock.quant.settings import Settings
from penstock.quant.unquantized import Plain

FIELD = "expert_dtype"


def read_fp8_and_fp4(config: Mapping[str, Any], plain: Plain) -> Methods:
    """quant_method "fp8": the codes of experts may be float4 e2m1, two in a byte, with an exponent
    for each 32 inputs."""
    kind = Settings(config).choice(FIELD, ("fp8", "fp4"), "fp8")
    methods = read_fp8({name: value for name, value in config.items() if name != FIELD}, plain)
    if kind == "fp8":
        return methods
    return replace(methods, experts=MxFp4(plain, MxNames("weight", "scale", signed=True)))

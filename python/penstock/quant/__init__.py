"""How linear weights are stored and multiplied. Layers implement sharding, methods the formats."""

from penstock.quant.formats import FORMATS, Methods, kept_modules, read_methods
from penstock.quant.method import (
    FusesGate,
    FusesNorm,
    FusesResidual,
    LinearMethod,
    Weights,
    WeightTensor,
)
from penstock.quant.unquantized import Plain, Transposed, Unquantized

__all__ = [
    "FORMATS",
    "FusesGate",
    "FusesNorm",
    "FusesResidual",
    "LinearMethod",
    "Methods",
    "Plain",
    "Transposed",
    "Unquantized",
    "WeightTensor",
    "Weights",
    "kept_modules",
    "read_methods",
]

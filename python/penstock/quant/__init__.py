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
from penstock.quant.packed import Packed, Quantized
from penstock.quant.rtn import RoundToNearest
from penstock.quant.unquantized import Plain, Transposed, Unquantized

__all__ = [
    "FORMATS",
    "FusesGate",
    "FusesNorm",
    "FusesResidual",
    "LinearMethod",
    "Methods",
    "Packed",
    "Plain",
    "Quantized",
    "RoundToNearest",
    "Transposed",
    "Unquantized",
    "WeightTensor",
    "Weights",
    "kept_modules",
    "read_methods",
]

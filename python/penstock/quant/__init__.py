"""How linear weights are stored and multiplied. Layers own sharding, methods own formats."""

from penstock.quant.formats import FORMATS, WHILE_LOADING, read_methods
from penstock.quant.method import (
    FusesGate,
    FusesNorm,
    FusesResidual,
    LinearMethod,
    Weights,
    WeightTensor,
)
from penstock.quant.methods import Methods, kept_modules
from penstock.quant.packed import Packed, Quantized
from penstock.quant.rtn import RoundToNearest
from penstock.quant.unquantized import Plain, Transposed, Unquantized

__all__ = [
    "FORMATS",
    "WHILE_LOADING",
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

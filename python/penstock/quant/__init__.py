"""How linear weights are stored and multiplied. Layers implement sharding, methods the formats."""

from penstock.quant.compressed_tensors import read_compressed_tensors
from penstock.quant.formats import FORMATS, WHILE_LOADING, read_methods
from penstock.quant.fp8 import Fp8, Fp8Layout, read_fbgemm_fp8, read_fp8
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

FORMATS |= {
    "compressed-tensors": read_compressed_tensors,
    "fbgemm_fp8": read_fbgemm_fp8,
    "fp8": read_fp8,
}

__all__ = [
    "FORMATS",
    "WHILE_LOADING",
    "Fp8",
    "Fp8Layout",
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

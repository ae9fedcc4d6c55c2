"""How linear weights are stored and multiplied. Layers implement sharding, methods the formats."""

from penstock.quant.auto_round import read_auto_round
from penstock.quant.awq import read_awq
from penstock.quant.bitsandbytes import FourBit, Int8, read_bitsandbytes
from penstock.quant.compressed_tensors import read_compressed_tensors
from penstock.quant.eetq import read_eetq
from penstock.quant.experts import stacks_experts
from penstock.quant.formats import FORMATS, WHILE_LOADING, read_methods
from penstock.quant.fp8 import Fp8, Fp8Layout, read_fbgemm_fp8
from penstock.quant.gptq import read_gptq
from penstock.quant.marlin import read_marlin
from penstock.quant.method import (
    CutsInputs,
    FusesGate,
    FusesNorm,
    FusesResidual,
    GatesInputs,
    LinearMethod,
    OrdersOutputs,
    StacksExperts,
    Weights,
    WeightTensor,
)
from penstock.quant.methods import Methods, kept_modules, with_stored_head
from penstock.quant.modelopt import read_modelopt, read_modelopt_fp4
from penstock.quant.mx import read_mxfp4
from penstock.quant.mxfp8 import MxFp8, read_fp8_or_mxfp8, read_mxfp8, with_stored_experts
from penstock.quant.packed import Packed, Quantized
from penstock.quant.rtn import RoundToNearest
from penstock.quant.unquantized import Plain, Transposed, Unquantized

FORMATS |= {
    "auto-round": read_auto_round,
    "awq": read_awq,
    "bitsandbytes": read_bitsandbytes,
    "compressed-tensors": read_compressed_tensors,
    "eetq": read_eetq,
    "fbgemm_fp8": read_fbgemm_fp8,
    "fp8": read_fp8_or_mxfp8,
    "gptq": read_gptq,
    "intel/auto-round": read_auto_round,
    "marlin": read_marlin,
    "modelopt": read_modelopt,
    "modelopt_fp4": read_modelopt_fp4,
    "mxfp4": read_mxfp4,
    "mxfp8": read_mxfp8,
}
WHILE_LOADING |= {
    "bitsandbytes": Int8,
    "bitsandbytes-fp4": lambda plain: FourBit(plain, "fp4"),
    "bitsandbytes-nf4": lambda plain: FourBit(plain, "nf4"),
}

__all__ = [
    "FORMATS",
    "WHILE_LOADING",
    "CutsInputs",
    "Fp8",
    "Fp8Layout",
    "FusesGate",
    "FusesNorm",
    "FusesResidual",
    "GatesInputs",
    "LinearMethod",
    "Methods",
    "MxFp8",
    "OrdersOutputs",
    "Packed",
    "Plain",
    "Quantized",
    "RoundToNearest",
    "StacksExperts",
    "Transposed",
    "Unquantized",
    "WeightTensor",
    "Weights",
    "kept_modules",
    "read_methods",
    "stacks_experts",
    "with_stored_experts",
    "with_stored_head",
]

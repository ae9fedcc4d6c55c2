"""How a KV cache stores keys and values in fewer bits, in torch: the definition of the format.

fp8: a cast that saturates. int8 and int4: each key and each value of a token and head has a scale
and a zero of its own: x = code * scale + zero, with codes of 0 to 255 or 0 to 15. Both follow from
that vector alone, so what is stored of a token depends on no other token.

Two codes of 4 bits share a byte: element i has the low bits, element i + D / 2 the high bits. These
two elements rotate together, so the thread that writes the byte has both. To read half a head is
one contiguous load, with the same shift for all of its bytes.

Source of the formula: asymmetric quantization per token and head, as LMDeploy's TurboMind does it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
PARAMS = torch.float16  # of scale and zero
MOST = torch.finfo(PARAMS).max


def bits_of(kv_cache: Tensor, size: int) -> int:
    """Returns the bits of a code in a cache of integers, for heads of `size`; 0 for floats."""
    return 0 if kv_cache.dtype != torch.uint8 else 8 * kv_cache.shape[4] // size


def params_of(x: Tensor, levels: int) -> Tensor:
    """Returns scale and zero [..., 2] float16 of x [..., D] wide, for codes of 0 to `levels`.

    The scale of a vector of equal elements, or of too small a range for float16, is 1.
    """
    low, high = x.aminmax(dim=-1)
    zero = low.clamp(-MOST, MOST).to(PARAMS)
    scale = ((high - zero) / levels).clamp(max=MOST).to(PARAMS)
    return torch.stack((torch.where(scale <= 0, 1.0, scale), zero), dim=-1)


def codes_of(x: Tensor, params: Tensor, levels: int) -> Tensor:
    """Returns the codes [..., D] uint8 of x [..., D] wide, by the parameters as stored."""
    scale, zero = params.to(x.dtype)[..., None, :].unbind(-1)
    return ((x - zero) / scale).clamp_(0, levels).round_().to(torch.uint8)


@dataclass(frozen=True)
class Rows:
    """Keys and values of a cache as the references read and write them: a row per token and head.

    Row ((block * 2 + (0 for keys, 1 for values)) * Hkv + head) * block_tokens + token of the block.
    """

    kv_cache: Tensor
    """[blocks, 2, Hkv, block_tokens, D; of 4 bits D / 2]."""
    params: Tensor | None
    """[blocks, 2, Hkv, block_tokens, 2] float16: scale and zero, of integers only."""
    size: int
    """D."""

    def read(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns the keys or values [N, D] of row numbers [N], in `dtype`."""
        data = self.kv_cache.view(-1, self.kv_cache.shape[4]).index_select(0, rows)
        if self.params is None:
            return data.to(dtype)
        if bits_of(self.kv_cache, self.size) == 4:
            data = torch.cat((data & 15, data >> 4), dim=-1)
        params = self.params.view(-1, 2).index_select(0, rows).to(dtype)
        return torch.addcmul(params[:, 1:], data.to(dtype), params[:, :1])

    def write(self, slots: Tensor, kv: Tensor) -> None:
        """Stores keys and values [T, 2, Hkv, D] wide of tokens at `slots` [T] int64."""
        block_tokens = self.kv_cache.shape[3]
        places = slots // block_tokens, slice(None), slice(None), slots % block_tokens
        if self.params is None:
            self.kv_cache[places] = saturated(kv, self.kv_cache.dtype)
            return
        codes, params = quantized(kv, bits_of(self.kv_cache, self.size))
        self.kv_cache[places], self.params[places] = codes, params


def quantized(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Returns x [..., D] wide as uint8 [..., D], of 4 bits [..., D / 2], and its parameters."""
    levels = (1 << bits) - 1
    params = params_of(x, levels)
    codes = codes_of(x, params, levels)
    if bits == 4:
        low, high = codes.chunk(2, dim=-1)
        codes = low | high << 4
    return codes, params


def saturated(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns x in `dtype`. In fp8, the largest number replaces what is larger, infinity too."""
    if dtype in FP8:
        most = torch.finfo(dtype).max
        x = x.clamp(-most, most)
    return x.to(dtype)

"""What attention kernels for Hopper GPUs share to read caches of fewer bits: see kv_quantization.py.

Codes travel as words of two bytes. Two words become float16 in registers, which holds all codes:
integers less half of their range, so that sums of them stay small.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .kv_quantization import bits_of

_FLOATS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}


def form_of(kv_cache: Tensor, size: int) -> str:
    """What a cache of heads of `size` stores: e4m3, e5m2, int8 or int4."""
    return _FLOATS.get(kv_cache.dtype, f"int{bits_of(kv_cache, size)}")


@gluon.constexpr_function
def _assembly(form):
    """PTX that makes float16 of two words: pairs of their low bytes and of their high bytes.

    Of 4 bits each byte is two numbers, the low bits' before the high bits'. Integers come less 128,
    or less 8: under the exponent of 1,024, or of 64 for high bits, they are the last bits.
    """
    if form == "e4m3":
        lines = [
            "prmt.b32 t, $2, 0, 0x3120;",
            "mov.b32 {l, h}, t;",
            "cvt.rn.f16x2.e4m3x2 $0, l;",
            "cvt.rn.f16x2.e4m3x2 $1, h;",
        ]
    elif form == "e5m2":
        lines = ["prmt.b32 $0, $2, 0, 0x2404;", "and.b32 $1, $2, 0xff00ff00;"]
    elif form == "int8":
        lines = [
            "mov.b32 f, 0xe480e480;",  # -(1024 + 128)
            "lop3.b32 t, $2, 0x00ff00ff, 0x64006400, 0xea;",  # (bytes & mask) | exponent
            "prmt.b32 u, $2, t, 0x5351;",
            "add.f16x2 $0, t, f;",
            "add.f16x2 $1, u, f;",
        ]
    else:
        lines = [
            "mov.b32 f, 0xe408e408;",  # -(1024 + 8)
            "mov.b32 g, 0xd480d480;",  # -(64 + 8)
            "mov.b32 s, 0x2c002c00;",  # 1 / 16
            "shr.u32 u, $4, 8;",
        ]
        for first, source in ((0, "$4"), (2, "u")):
            lines += [
                f"lop3.b32 t, {source}, 0x000f000f, 0x64006400, 0xea;",
                f"add.f16x2 ${first}, t, f;",
                f"lop3.b32 t, {source}, 0x00f000f0, 0x64006400, 0xea;",
                f"fma.rn.f16x2 ${first + 1}, t, s, g;",
            ]
    return "{ .reg .b32 t, u, f, g, s; .reg .b16 l, h;\n" + "\n".join(lines) + "\n}"


@gluon.constexpr_function
def _halves(count):
    return (gl.float16,) * count


@gluon.jit
def numbers_of(words, FORM: gl.constexpr):
    """Codes [KEYS, words of a head] -> numbers [KEYS, D] float16, in a layout that follows."""
    asm: gl.constexpr = _assembly(FORM)
    KEYS: gl.constexpr = words.shape[0]
    WORDS: gl.constexpr = words.shape[1]
    if FORM == "int4":
        kinds: gl.constexpr = _halves(4)
        a, b, c, d = gl.inline_asm_elementwise(asm, "=r,=r,=r,=r,r", (words,), kinds, True, 2)
        low = gl.join(a, c).reshape([KEYS, 2 * WORDS])
        high = gl.join(b, d).reshape([KEYS, 2 * WORDS])
        return gl.join(low, high).permute((0, 2, 1)).reshape([KEYS, 4 * WORDS])
    else:  # noqa: RET505
        kinds: gl.constexpr = _halves(2)
        low, high = gl.inline_asm_elementwise(asm, "=r,=r,r", (words,), kinds, True, 2)
        return gl.join(low, high).reshape([KEYS, 2 * WORDS])


def code_blocks(kv_cache: Tensor) -> TensorDescriptor:
    """The copy engine's view of the codes, one plane of a block at a time."""
    words = kv_cache.shape[4] // 2
    rows = kv_cache.view(torch.int16).view(-1, words)
    block = [kv_cache.shape[3], words]
    layout = gl.NVMMASharedLayout.get_default_for(block, gl.int16)
    return TensorDescriptor(rows, list(rows.shape), list(rows.stride()), block, layout)


def param_blocks(kv_params: Tensor) -> TensorDescriptor:
    """The copy engine's view of scales and zeros, as words: one plane of a block at a time.

    Copies go to multiples of 128 bytes, so with those of a small block come those of the next ones.
    """
    block_tokens = kv_params.shape[3]
    words = kv_params.view(torch.int32).view(-1, block_tokens)
    block = [max(1, 32 // block_tokens), block_tokens]
    layout = gl.NVMMASharedLayout(0, 32, 2)
    return TensorDescriptor(words, list(words.shape), list(words.stride()), block, layout)

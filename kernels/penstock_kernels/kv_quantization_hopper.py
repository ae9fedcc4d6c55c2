"""How attention kernels for Hopper GPUs read caches of fewer bits: see kv_quantization.py.

Codes travel as words of two bytes. Two words become float16 in registers, which holds all codes:
integers less half of their range, so that sums of them stay small.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .hopper import in_blocks
from .kv_quantization import bits_of

_FLOATS = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}


def form_of(kv_cache: Tensor, size: int) -> str:
    """What a cache of heads of `size` stores: e4m3, e5m2, int8 or int4."""
    return _FLOATS.get(kv_cache.dtype, f"int{bits_of(kv_cache, size)}")


@gluon.constexpr_function
def _assembly(form, scaled):
    """PTX that makes float16 of two words: pairs of their low bytes and of their high bytes.

    Of 4 bits each byte is two numbers, the low bits' before the high bits'. Integers come less 128,
    or less 8: under the exponent of 1,024, or of 64 for high bits, they are the last bits. If
    `scaled`, they are multiplied and added to; the pairs of factors and terms follow the words.
    """
    outputs = 4 if form == "int4" else 2
    words = f"${outputs}"
    if form == "e4m3":
        lines = [
            f"prmt.b32 t, {words}, 0, 0x3120;",
            "mov.b32 {l, h}, t;",
            "cvt.rn.f16x2.e4m3x2 $0, l;",
            "cvt.rn.f16x2.e4m3x2 $1, h;",
        ]
    elif form == "e5m2":
        lines = [f"prmt.b32 $0, {words}, 0, 0x2404;", f"and.b32 $1, {words}, 0xff00ff00;"]
    elif form == "int8":
        lines = [
            "mov.b32 f, 0xe480e480;",  # -(1024 + 128)
            f"lop3.b32 t, {words}, 0x00ff00ff, 0x64006400, 0xea;",  # (bytes & mask) | exponent
            f"prmt.b32 u, {words}, t, 0x5351;",
            "add.f16x2 t0, t, f;",
            "add.f16x2 t1, u, f;",
        ]
    else:
        lines = [
            "mov.b32 f, 0xe408e408;",  # -(1024 + 8)
            "mov.b32 g, 0xd480d480;",  # -(64 + 8)
            "mov.b32 s, 0x2c002c00;",  # 1 / 16
            f"shr.u32 u, {words}, 8;",
        ]
        for first, source in ((0, words), (2, "u")):
            lines += [
                f"lop3.b32 t, {source}, 0x000f000f, 0x64006400, 0xea;",
                f"add.f16x2 t{first}, t, f;",
                f"lop3.b32 t, {source}, 0x00f000f0, 0x64006400, 0xea;",
                f"fma.rn.f16x2 t{first + 1}, t, s, g;",
            ]
    if form.startswith("int"):
        for i in range(outputs):
            product = f"fma.rn.f16x2 ${i}, t{i}, ${outputs + 1}, ${outputs + 2};"
            lines.append(product if scaled else f"mov.b32 ${i}, t{i};")
    registers = ".reg .b32 t, u, f, g, s, t0, t1, t2, t3; .reg .b16 l, h;"
    return "{ " + registers + "\n" + "\n".join(lines) + "\n}"


@gluon.constexpr_function
def _constraints(form, scaled):
    outputs = 4 if form == "int4" else 2
    return ",".join(["=r"] * outputs + ["r"] * (3 if scaled else 1))


@gluon.constexpr_function
def _halves(form):
    return (gl.float16,) * (4 if form == "int4" else 2)


@gluon.jit
def numbers_of(arguments, FORM: gl.constexpr):
    """Codes [KEYS, words of a head] -> numbers [KEYS, D] float16, in a layout that follows.

    `arguments` = (codes,), or of integers (codes, factors, terms), which are multiplied and added.
    """
    SCALED: gl.constexpr = len(arguments) > 1
    asm: gl.constexpr = _assembly(FORM, SCALED)
    constraints: gl.constexpr = _constraints(FORM, SCALED)
    kinds: gl.constexpr = _halves(FORM)
    KEYS: gl.constexpr = arguments[0].shape[0]
    WORDS: gl.constexpr = arguments[0].shape[1]
    made = gl.inline_asm_elementwise(asm, constraints, arguments, kinds, True, 2)
    if FORM == "int4":
        low = gl.join(made[0], made[2]).reshape([KEYS, 2 * WORDS])
        high = gl.join(made[1], made[3]).reshape([KEYS, 2 * WORDS])
        return gl.join(low, high).permute((0, 2, 1)).reshape([KEYS, 4 * WORDS])
    else:  # noqa: RET505
        return gl.join(made[0], made[1]).reshape([KEYS, 2 * WORDS])


@gluon.jit
def scales_and_zeros(words):
    """Of parameters as words, in float32."""
    scale = (words & 0xFFFF).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
    zero = (words >> 16).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
    return scale, zero


@gluon.jit
def normalized(rows):
    """(rows [N, D] in float16, [N] powers of two by which they are too small).

    The largest element of a row becomes 1 to 2, so none is too large for float16.
    """
    most = gl.max(gl.abs(rows.to(gl.float32)), 1).to(gl.int32, bitcast=True)
    power = gl.minimum(gl.maximum(most & 0x7F800000, 1 << 23), 253 << 23)
    inverse = ((254 << 23) - power).to(gl.float32, bitcast=True)
    small = (rows.to(gl.float32) * inverse[:, None]).to(gl.float16)
    return small, power.to(gl.float32, bitcast=True)


def code_blocks(kv_cache: Tensor) -> TensorDescriptor:
    """The copy engine's view of the codes, one plane of a block at a time."""
    words = kv_cache.shape[4] // 2
    rows = kv_cache.view(torch.int16).view(-1, words)
    return in_blocks(rows, (kv_cache.shape[3], words), gl.int16)


SLOT = gl.constexpr(32)  # words: copies of parameters begin at multiples of 128 bytes


def param_blocks(kv_params: Tensor) -> TensorDescriptor:
    """The copy engine's view of scales and zeros, as words: one plane of a block at a time."""
    block_tokens = kv_params.shape[3]
    words = kv_params.view(torch.int32).view(-1, block_tokens)
    layout = gl.NVMMASharedLayout(0, 32, 2)
    shape, strides = list(words.shape), list(words.stride())
    return TensorDescriptor(words, shape, strides, [1, block_tokens], layout)


@gluon.constexpr_function
def slot_of(block_tokens):
    """Words that the parameters of a plane of a block have in a ring."""
    return max(SLOT.value, block_tokens)

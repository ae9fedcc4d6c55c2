"""Numbers of packed codes for the one-row kernel: words in registers become float16 operands.

Integers are masked, no more: bits in the fraction of a float16 whose exponent is 0 are a subnormal
number, code * 2^-24. An int4 code of the upper 8 of 16 rows lies 4 bits higher, so it counts
16-fold. Floating-point codes of 4 bits are moved to the places of exponent and fraction, 2^-14 of
their value; those of 8 bits an instruction converts.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

UNITS = {"int4": 2.0**24, "int8": 2.0**24, "fp4": 2.0**14, "fp8": 1.0}


@gluon.constexpr_function
def unit(kind):
    """What makes a code's value of a number of `numbers_of_line`."""
    return UNITS[kind]


@gluon.constexpr_function
def line_layout(kind, bits, warps):
    """16 outputs and 64 inputs of each warp, four words in a row in a thread: [warps, 16, 16] words
    of fp8, else [warps, bits / 4, 128]."""
    of_warps = [[1 << bit, 0, 0] for bit in range(warps.bit_length() - 1)]
    registers = [[0, 0, 1], [0, 0, 2]]
    if kind == "fp8":
        registers.append([0, 8, 0])
        lanes = [[0, 0, 4], [0, 0, 8], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
        return gl.DistributedLinearLayout(registers, lanes, of_warps, [], [warps, 16, 16])
    if bits == 8:
        registers.append([0, 1, 0])
    lanes = [[0, 0, 4 << bit] for bit in range(5)]
    return gl.DistributedLinearLayout(registers, lanes, of_warps, [], [warps, bits // 4, 128])


@gluon.constexpr_function
def _assembly(kind):
    """PTX of one word: pairs of float16 numbers.

    Pair p of a word of 4 bits is of row p % 2 and of columns (p // 2) * 8 on, of int8 of row p, of
    fp8 of columns p * 8 on.
    """
    pairs = 4 if kind in ("int4", "fp4") else 2
    lines = []
    for pair in range(pairs):
        lines += {"int4": _int4, "int8": _int8, "fp4": _fp4, "fp8": _fp8}[kind](pair, 2 * pairs)
        lines.append(f"mov.b32 {{${2 * pair}, ${2 * pair + 1}}}, v;")
    return "{ .reg .b32 t, u, v; .reg .b16 l, h;\n" + "\n".join(lines) + "\n}"


@gluon.constexpr_function
def _int4(pair, word):
    mask = (0x000F000F, 0x00F000F0)[pair % 2]
    return [f"shr.u32 t, ${word}, {pair // 2 * 8};", f"and.b32 v, t, {mask};"]


@gluon.constexpr_function
def _int8(pair, word):
    # The highest bit is flipped back.
    return [
        f"shr.u32 t, ${word}, {8 * pair};",
        "lop3.b32 v, t, 0x00ff00ff, 0x00800080, 0x6a;",  # (t & mask) ^ bits
    ]


@gluon.constexpr_function
def _fp4(pair, word):
    up = 9 - 4 * pair  # of the lowest of the three bits of the number
    return [
        f"shl.b32 t, ${word}, {12 - 4 * pair};",
        f"shl.b32 u, ${word}, {up};" if up >= 0 else f"shr.u32 u, ${word}, {-up};",
        "and.b32 u, u, 0x0e000e00;",
        "lop3.b32 v, t, 0x80008000, u, 0xea;",  # (t & mask) | u
    ]


@gluon.constexpr_function
def _fp8(pair, word):
    return [f"mov.b32 {{l, h}}, ${word};", f"cvt.rn.f16x2.e4m3x2 v, {'lh'[pair]};"]


@gluon.constexpr_function
def _constraints(outputs):
    return ",".join(["=h"] * outputs + ["r"])


@gluon.constexpr_function
def _halves(count):
    return (gl.float16,) * count


@gluon.jit
def factors_of_rows(KIND: gl.constexpr, LAYOUT: gl.constexpr):
    """How often the numbers of each of 16 rows count, float32."""
    if KIND == "int4":
        return gl.where(gl.arange(0, 16, LAYOUT) < 8, 1.0, 16.0)
    else:  # noqa: RET505
        return gl.full([16], 1.0, gl.float32, LAYOUT)


@gluon.jit
def numbers_of_line(words, KIND: gl.constexpr, BITS: gl.constexpr):
    """Numbers [warps, 16, 64] float16 of words in `line_layout`, columns in the order of the
    instruction: column / 16, + 8, lane, lowest bit."""
    WARPS: gl.constexpr = words.shape[0]
    COUNT: gl.constexpr = 32 // BITS
    if KIND == "fp8":
        w = words.reshape([WARPS, 16, 4, 4])  # row, lane, column / 16
    else:
        w = words.reshape([WARPS, BITS // 4, 8, 4, 4])  # k5, row of 8, lane, k54 or k43
    o = gl.inline_asm_elementwise(
        _assembly(KIND), _constraints(COUNT), (w,), _halves(COUNT), True, 1
    )
    every = gl.join(gl.join(o[0], o[1]), gl.join(o[2], o[3]))
    if BITS == 4:  # in the end: lowest, row + 8, column + 8
        every = gl.join(every, gl.join(gl.join(o[4], o[5]), gl.join(o[6], o[7])))
        block = every.permute((0, 6, 1, 2, 4, 7, 3, 5))
    elif KIND == "fp8":  # lowest, column + 8
        block = every.permute((0, 1, 3, 5, 2, 4))
    else:  # lowest, row + 8; k4 and k3 are column / 16 and column + 8
        block = every.permute((0, 6, 2, 1, 4, 3, 5))
    return block.reshape([WARPS, 16, 64])

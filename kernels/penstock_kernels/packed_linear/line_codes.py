"""Floating-point codes in kernels of single rows: words in registers become float16 operands.

Codes of 4 bits are moved to the places of exponent and fraction, which makes 2^-14 of their value;
those of 8 bits an instruction converts.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from .hopper_codes import x_of_lines


@gluon.constexpr_function
def unit(kind):
    """What makes a code's value of a number of `numbers_of_line`."""
    return 2.0**14 if kind == "fp4" else 1.0


@gluon.jit
def powers_of(peak):
    """(the power of two by which rows of magnitudes up to `peak` become float16, its inverse).

    It brings the peak to 2^14 or more, so that a bfloat16 number down to 2^-29 of it stays exact.
    """
    exponent = gl.maximum(peak.to(gl.int32, bitcast=True) >> 23, 20)
    up, down = (268 - exponent) << 23, (exponent - 14) << 23
    return up.to(gl.float32, bitcast=True), down.to(gl.float32, bitcast=True)


@gluon.constexpr_function
def _assembly(kind):
    """PTX of one word: pairs of float16 numbers.

    Pair p of a word of 4 bits is of row p % 2 and of columns (p // 2) * 8 on, of fp8 of columns
    p * 8 on.
    """
    pairs, make = (4, _fp4) if kind == "fp4" else (2, _fp8)
    lines = []
    for pair in range(pairs):
        lines += make(pair, f"${2 * pairs}")
        lines.append(f"mov.b32 {{${2 * pair}, ${2 * pair + 1}}}, v;")
    return "{ .reg .b32 t, u, v; .reg .b16 l, h;\n" + "\n".join(lines) + "\n}"


@gluon.constexpr_function
def _fp4(pair, word):
    up = 9 - 4 * pair  # of the lowest of the three bits of the number
    return [
        f"shl.b32 t, {word}, {12 - 4 * pair};",
        f"shl.b32 u, {word}, {up};" if up >= 0 else f"shr.u32 u, {word}, {-up};",
        "and.b32 u, u, 0x0e000e00;",
        "lop3.b32 v, t, 0x80008000, u, 0xea;",  # (t & mask) | u
    ]


@gluon.constexpr_function
def _fp8(pair, word):
    return [f"mov.b32 {{l, h}}, {word};", f"cvt.rn.f16x2.e4m3x2 v, {'lh'[pair]};"]


@gluon.constexpr_function
def _constraints(outputs):
    return ",".join(["=h"] * outputs + ["r"])


@gluon.constexpr_function
def _halves(count):
    return (gl.float16,) * count


@gluon.jit
def numbers_of_line(words, KIND: gl.constexpr):
    """Numbers [warps, 16, 64] float16 of words in `strip_layout`, columns in the order of the
    instruction: column / 16, + 8, lane, lowest bit."""
    WARPS: gl.constexpr = words.shape[0]
    COUNT: gl.constexpr = 8 if KIND == "fp4" else 4
    # Row, lane, column / 16; of fp4 row % 8, lane, k54.
    w = words.reshape([WARPS, 16, 4, 4] if KIND == "fp8" else [WARPS, 1, 8, 4, 4])
    o = gl.inline_asm_elementwise(
        _assembly(KIND), _constraints(COUNT), (w,), _halves(COUNT), True, 1
    )
    every = gl.join(gl.join(o[0], o[1]), gl.join(o[2], o[3]))
    if KIND == "fp4":  # in the end: lowest, row + 8, column + 8
        every = gl.join(every, gl.join(gl.join(o[4], o[5]), gl.join(o[6], o[7])))
        block = every.permute((0, 6, 1, 2, 4, 7, 3, 5))
    else:  # lowest, column + 8
        block = every.permute((0, 1, 3, 5, 2, 4))
    return block.reshape([WARPS, 16, 64])


@gluon.jit
def add_lines(sums, words, scales, x, SCALED: gl.constexpr):
    """The sums [warps, 16, 8] of both sets of outputs of fp8, with a turn's products.

    `words` as of `halves_of_lines`, `scales` [warps, 16] of both sets, `x` in shared memory.
    """
    SUM: gl.constexpr = sums[0].type.layout
    right = x_of_lines(x, gl.DotOperandLayout(1, SUM, 2))
    more = ()
    for i in gl.static_range(2):
        left = numbers_of_line(words[i], "fp8")
        left = gl.convert_layout(left, gl.DotOperandLayout(0, SUM, 2), assert_trivial=True)
        if SCALED:
            part = mma_v2(left, right, gl.zeros_like(sums[i]))
            one = sums[i] + part * scales[i].to(gl.float32)[:, :, None]
        else:
            one = mma_v2(left, right, sums[i])
        more = more + (one,)  # noqa: RUF005 (Triton unpacks no tuples)
    return more


@gluon.jit
def by_output(sums, KIND: gl.constexpr):
    """The sums of outputs, of sums [warps, 16, 8] of a matrix instruction: of fp8 ([warps, 8] of
    each set), else ([warps, 16],).

    Columns are equal; of fp8 the even ones, which have the first half of x, are of even rows, and
    two rows are of one output.
    """
    SUM: gl.constexpr = sums[0].type.layout
    column = gl.arange(0, 8, gl.SliceLayout(0, gl.SliceLayout(1, SUM)))[None, None, :]
    if KIND == "fp8":
        row = gl.arange(0, 16, gl.SliceLayout(0, gl.SliceLayout(2, SUM)))[None, :, None]
        found = ()
        for i in gl.static_range(2):
            one = gl.sum(gl.where(column == row % 2, sums[i], 0.0), 2)
            found = found + (gl.sum(one.reshape([one.shape[0], 8, 2]), 2),)  # noqa: RUF005
        return found
    else:  # noqa: RET505
        return (gl.sum(gl.where(column == 0, sums[0], 0.0), 2),)

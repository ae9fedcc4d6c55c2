"""Numbers of packed codes for Hopper GPUs: words in registers become operands of wgmma.

A lane's word holds what it contributes to a matrix instruction of 16 rows and 16 columns. A few
instructions make pairs of numbers of it, exact in 16 bits: a code is put into the fraction of a
float of known exponent (128 + code in bfloat16, 1024 + code in float16), and one subtraction takes
the exponent's part and the zero point off. Floating-point codes are moved to the places of a wider
float's exponent and fraction, and one product corrects the exponent.

Source: Kim et al., Who Says Elephants Can't Run, arXiv:2211.10017, for integers of 4 and 8 bits.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment"

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

TILE = gl.constexpr(64)  # rows and columns of a block
LANES = [[0, 4], [0, 8], [0, 16], [0, 32], [0, 64]]


@gluon.constexpr_function
def words_layout(bits, warps=4):
    """The words of a block [bits, 128]: four next to each other in a thread, a warp per 16 rows. 8
    warps have two blocks of 4 bits [8, 128], one after the other."""
    more = [[4, 0]] if bits == 8 else []
    of_warps = [[1 << bit, 0] for bit in range(warps.bit_length() - 1)]
    shape = [bits * warps // 4, 128]
    return gl.DistributedLinearLayout([[0, 1], [0, 2], *more], LANES, of_warps, [], shape)


@gluon.constexpr_function
def float8_layout():
    """Codes [64, 128]: 16 in a row in a thread, as `in_lanes` puts them."""
    registers = [[0, 1], [0, 2], [0, 4], [0, 8], [8, 0], [0, 16]]
    lanes = [[0, 32], [0, 64], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[16, 0], [32, 0]], [], [64, 128])


@gluon.constexpr_function
def scales_layout(count, warps=4):
    """Scales or zeros [count, 64] of a block: in a thread those of the rows of its words. 8 warps
    have two blocks [2 * count, 64], one after the other."""
    columns = [[1 << bit, 0] for bit in range(count.bit_length() - 1)]
    lanes = [[0, 0], [0, 0], [0, 1], [0, 2], [0, 4]]
    of_warps = [[0, 16], [0, 32], [count, 0]][: warps.bit_length() - 1]
    shape = [count * warps // 4, 64]
    return gl.DistributedLinearLayout([[0, 8], *columns], lanes, of_warps, [], shape)


@gluon.constexpr_function
def _assembly(kind, half, has_zeros, scaled):
    """PTX of one word. Operands: outputs, the word, pairs of zeros and of scales for both rows.

    Pair p of a word of 4 bits is of row p % 2 and of columns (p // 2) * 8 on, of int8 of row p, of
    fp8 of columns p * 8 on.
    """
    pairs = 2 if kind in ("int8", "fp8") else 4
    operand = 2 * pairs
    zeros = [f"${operand + 1}", f"${operand + 2}"] if has_zeros else None
    scales = [f"${operand + 1 + 2 * has_zeros + row}" for row in range(2)]
    made = {"int4": _int4, "offset4": _offset4, "int8": _int8, "fp4": _fp4, "fp8": _fp8}[kind]
    lines, word = [], f"${operand}"
    for pair in range(pairs):
        zero = zeros[pair % 2] if zeros else None
        lines += made(f"v{pair}", word, pair, half, zero)
        if scaled:
            lines.append(f"mul.{half} v{pair}, v{pair}, {scales[pair % 2]};")
        lines.append(f"mov.b32 {{${2 * pair}, ${2 * pair + 1}}}, v{pair};")
    return "{ .reg .b32 t, u, v<4>;\n" + "\n".join(lines) + "\n}"


@gluon.constexpr_function
def _int4(value, word, pair, half, zero):
    ones, none = (0x43004300, 0x43084308) if half == "bf16x2" else (0x64006400, 0x64086408)
    return [
        f"shr.u32 t, {word}, {4 * pair};",
        f"lop3.b32 {value}, t, 0x000f000f, {ones}, 0xea;",  # (t & mask) | ones
        f"mov.b32 u, {zero or none};",
        f"sub.{half} {value}, {value}, u;",
    ]


@gluon.constexpr_function
def _offset4(value, word, pair, half, _zero):
    ones = 0x43004300 if half == "bf16x2" else 0x64006400
    return [
        f"shr.u32 t, {word}, {4 * pair};",
        f"lop3.b32 {value}, t, 0x000f000f, {ones}, 0xea;",  # (t & mask) | ones
    ]


@gluon.constexpr_function
def _int8(value, word, pair, half, zero):
    lines = [f"shr.u32 t, {word}, {8 * pair};"]
    if half == "bf16x2":
        # 128 + the low 7 bits, less 128 or, of a negative number, 256: both exact.
        lines += [
            f"lop3.b32 {value}, t, 0x007f007f, 0x43004300, 0xea;",
            "lop3.b32 u, t, 0x00800080, 0x43004300, 0xea;",
            f"sub.{half} {value}, {value}, u;",
        ]
        return [*lines, f"sub.{half} {value}, {value}, {zero};"] if zero else lines
    # The highest bit is flipped back: 1024 + an unsigned number.
    return [
        *lines,
        f"lop3.b32 {value}, t, 0x00ff00ff, 0x64806480, 0x6a;",  # (t & mask) ^ ones
        f"mov.b32 u, {zero or 0x64806480};",
        f"sub.{half} {value}, {value}, u;",
    ]


@gluon.constexpr_function
def _fp8(value, word, pair, half, _zero):
    down, mask, factor = (
        (4, 0x07F007F0, 0x7B807B80) if half == "bf16x2" else (1, 0x3F803F80, 0x5C005C00)
    )
    bytes_of_pair = ("0x1404", "0x3424")[pair]  # to the higher byte of each half
    return [
        f"prmt.b32 t, {word}, 0, {bytes_of_pair};",
        f"shr.u32 u, t, {down};",
        f"and.b32 u, u, {mask};",
        f"lop3.b32 {value}, t, 0x80008000, u, 0xea;",
        f"mov.b32 u, {factor};",  # 2 ** 120, 2 ** 8
        f"mul.{half} {value}, {value}, u;",
    ]


@gluon.constexpr_function
def _four_fp8(half, scaled):
    """PTX of four codes of a row: two pairs, with pairs of their scale if scaled."""
    lines = []
    for pair in range(2):
        lines += _fp8(f"${pair}", "$2", pair, half, None)
        if scaled:
            lines.append(f"mul.{half} ${pair}, ${pair}, ${3 + pair};")
    return "{ .reg .b32 t, u;\n" + "\n".join(lines) + "\n}"


@gluon.constexpr_function
def _fp4(value, word, pair, half, _zero):
    # The lowest of the three bits of the number goes to bit 6, or 9.
    lowest, mask, factor = (
        (6, 0x01C001C0, 0x7E807E80) if half == "bf16x2" else (9, 0x0E000E00, 0x74007400)
    )
    up = lowest - 4 * pair
    return [
        f"shl.b32 t, {word}, {12 - 4 * pair};",
        f"shl.b32 u, {word}, {up};" if up >= 0 else f"shr.u32 u, {word}, {-up};",
        f"and.b32 u, u, {mask};",
        f"lop3.b32 {value}, t, 0x80008000, u, 0xea;",
        f"mov.b32 u, {factor};",  # 2 ** 126, 2 ** 14
        f"mul.{half} {value}, {value}, u;",
    ]


@gluon.constexpr_function
def _constraints(outputs, inputs):
    return ",".join(["=h"] * outputs + ["r"] * inputs)


@gluon.constexpr_function
def _half(dtype):
    return "bf16x2" if dtype == gl.bfloat16 else "f16x2"


@gluon.constexpr_function
def _of(dtype, count):
    return (dtype,) * count


@gluon.constexpr_function
def no_zero(kind, dtype):
    """What `pairs_of` adds to a zero point: where the code 0 is in the float that holds it."""
    if kind == "int8":
        return -128.0 if dtype == gl.bfloat16 else 1024.0
    return 128.0 if dtype == gl.bfloat16 else 1024.0


@gluon.jit
def pairs_of(values):
    """[count, rows] of 16 bits -> int32 [warps, 8, count] of rows w * 16 + g, and of those 8 on.

    A number is in both halves of its word.
    """
    COUNT: gl.constexpr = values.shape[0]
    rows = values.reshape([COUNT, values.shape[1] // 16, 2, 8]).permute((1, 3, 0, 2))
    bits = rows.to(gl.int16, bitcast=True).to(gl.int32) & 0xFFFF
    return (bits | (bits << 16)).split()


@gluon.jit
def _beside_4(pairs, words):
    L: gl.constexpr = gl.SliceLayout(2, gl.SliceLayout(4, words.type.layout))
    return gl.convert_layout(pairs, L).expand_dims(2).expand_dims(4)


@gluon.jit
def _beside_8(pairs, words):
    L: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(3, gl.SliceLayout(4, words.type.layout)))
    flat = gl.convert_layout(pairs.reshape([4, 8]), L)
    return flat.expand_dims(0).expand_dims(3).expand_dims(4)


@gluon.jit
def numbers_4(
    words, zeros, scales, KIND: gl.constexpr, dtype: gl.constexpr, COUNT: gl.constexpr,
    HAS_ZEROS: gl.constexpr, SCALED: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Numbers [16 * warps, 64] in LAYOUT, of words [warps, 128]; COUNT groups of columns in it."""
    WARPS: gl.constexpr = words.shape[0]
    w = words.reshape([WARPS, 8, 4, COUNT, 4 // COUNT])
    asm: gl.constexpr = _assembly(KIND, _half(dtype), HAS_ZEROS, SCALED)
    kinds: gl.constexpr = _of(dtype, 8)
    operands = (w,)
    if HAS_ZEROS:
        operands = operands + (_beside_4(zeros[0], w), _beside_4(zeros[1], w))  # noqa: RUF005
    if SCALED:
        operands = operands + (_beside_4(scales[0], w), _beside_4(scales[1], w))  # noqa: RUF005
    o = gl.inline_asm_elementwise(asm, _constraints(8, len(operands)), operands, kinds, True, 1)
    low = gl.join(gl.join(o[0], o[1]), gl.join(o[2], o[3]))
    high = gl.join(gl.join(o[4], o[5]), gl.join(o[6], o[7]))
    every = gl.join(low, high)  # warp, g, t, k54 as two, column's lowest bit, row + 8, column + 8
    block = every.permute((0, 6, 1, 3, 4, 7, 2, 5)).reshape([16 * WARPS, TILE])
    return gl.convert_layout(block, LAYOUT, assert_trivial=True)


@gluon.jit
def numbers_8(
    words, zeros, scales, KIND: gl.constexpr, dtype: gl.constexpr,
    HAS_ZEROS: gl.constexpr, SCALED: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """A block's numbers [64, 64] in LAYOUT, of words [8, 128]; one group of columns."""
    w = words.reshape([2, 4, 8, 4, 4])
    asm: gl.constexpr = _assembly(KIND, _half(dtype), HAS_ZEROS, SCALED)
    kinds: gl.constexpr = _of(dtype, 4)
    operands = (w,)
    if HAS_ZEROS:
        operands = operands + (_beside_8(zeros[0], w), _beside_8(zeros[1], w))  # noqa: RUF005
    if SCALED:
        operands = operands + (_beside_8(scales[0], w), _beside_8(scales[1], w))  # noqa: RUF005
    o = gl.inline_asm_elementwise(asm, _constraints(4, len(operands)), operands, kinds, True, 1)
    every = gl.join(
        gl.join(o[0], o[1]), gl.join(o[2], o[3])
    )  # k5, warp, g, t, k43, lowest, row + 8
    block = every.permute((1, 6, 2, 0, 4, 3, 5)).reshape([TILE, TILE])
    return gl.convert_layout(block, LAYOUT, assert_trivial=True)


@gluon.jit
def halves_of_float8(codes):
    """The codes [64, 64] of the first and of the second 64 columns, of codes [64, 128] in order."""
    places = codes.reshape([TILE, 4, 2, 16])  # columns 21, 6, 5430
    return places.permute((0, 1, 3, 2)).reshape([TILE, TILE, 2]).split()


@gluon.jit
def numbers_of_float8(
    codes, scale, dtype: gl.constexpr, SCALED: gl.constexpr, LAYOUT: gl.constexpr
):
    """Numbers [64, 64] in LAYOUT, of e4m3 codes uint8 [64, 64] in order, scaled by [64]."""
    asm: gl.constexpr = _four_fp8(_half(dtype), SCALED)
    kinds: gl.constexpr = _of(dtype, 1)
    if SCALED:
        L: gl.constexpr = gl.SliceLayout(1, codes.type.layout)
        wide = gl.convert_layout(scale, L)[:, None]
        (numbers,) = gl.inline_asm_elementwise(asm, "=r,=r,r,r,r", (codes, wide), kinds, True, 4)
    else:
        (numbers,) = gl.inline_asm_elementwise(asm, "=r,=r,r", (codes,), kinds, True, 4)
    bits = numbers.reshape([TILE, 2, 2, 2, 2, 2, 2])  # columns 2 1 5 4 3 0
    block = bits.permute((0, 3, 4, 5, 1, 2, 6)).reshape([TILE, TILE])
    return gl.convert_layout(block, LAYOUT, assert_trivial=True)


@gluon.constexpr_function
def strip_layout(kind, bits, warps):
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
def lines_layout(warps):
    """Words of fp8, of 16 outputs and 128 inputs of each warp: a warp loads 4 lines at once."""
    registers = [[0, 0, 1], [0, 0, 2], [0, 4, 0], [0, 8, 0]]
    lanes = [[0, 0, 4], [0, 0, 8], [0, 0, 16], [0, 1, 0], [0, 2, 0]]
    of_warps = [[1 << bit, 0, 0] for bit in range(warps.bit_length() - 1)]
    return gl.DistributedLinearLayout(registers, lanes, of_warps, [], [warps, 16, 32])


@gluon.jit
def halves_of_lines(words):
    """Of words in `lines_layout` those of 8 outputs, and those of the other 8, in `strip_layout`:
    each half of an output's line is a row of the matrix instruction."""
    WARPS: gl.constexpr = words.shape[0]
    L: gl.constexpr = strip_layout("fp8", 8, WARPS)
    low, high = words.reshape([WARPS, 2, 16, 16]).permute((0, 2, 3, 1)).split()
    low = gl.convert_layout(low, L, assert_trivial=True)
    return low, gl.convert_layout(high, L, assert_trivial=True)


@gluon.constexpr_function
def offset_of_strip(kind, dtype):
    """What numbers of `numbers_of_strip` are more than codes."""
    if kind == "int4":
        return 128.0 if dtype == gl.bfloat16 else 1024.0
    return -128.0 if kind == "int8" else 0.0


@gluon.jit
def numbers_of_strip(words, dtype: gl.constexpr, KIND: gl.constexpr, BITS: gl.constexpr):
    """Numbers [warps, 16, 64] of integers in `strip_layout`, columns in the order of the
    instruction: column / 16, + 8, lane, lowest bit. They keep an offset, which a sum of x takes
    off."""
    WARPS: gl.constexpr = words.shape[0]
    COUNT: gl.constexpr = 32 // BITS
    w = words.reshape([WARPS, BITS // 4, 8, 4, 4])  # k5, row of 8, lane, k54 or k43
    asm: gl.constexpr = _assembly("offset4" if KIND == "int4" else KIND, _half(dtype), False, False)
    kinds: gl.constexpr = _of(dtype, COUNT)
    o = gl.inline_asm_elementwise(asm, _constraints(COUNT, 1), (w,), kinds, True, 1)
    every = gl.join(gl.join(o[0], o[1]), gl.join(o[2], o[3]))
    if BITS == 4:  # in the end: lowest, row + 8, column + 8
        every = gl.join(every, gl.join(gl.join(o[4], o[5]), gl.join(o[6], o[7])))
        block = every.permute((0, 6, 1, 2, 4, 7, 3, 5))
    else:  # lowest, row + 8; k4 and k3 are column / 16 and column + 8
        block = every.permute((0, 6, 2, 1, 4, 3, 5))
    return block.reshape([WARPS, 16, 64])


@gluon.constexpr_function
def _x_of_lines(warps, wide):
    """Both halves of a turn of rows: of lanes that have even columns of the matrix instruction the
    first one, of the others the second. Before it is put into the order of the instruction
    [2 * warps, 64], and then, `wide`, [warps, 64, 4, 2]."""
    every = range(warps.bit_length() - 1)
    if wide:
        registers = [[0, 1, 0, 0], [0, 8, 0, 0], [0, 16, 0, 0], [0, 32, 0, 0]]
        lanes = [[0, 2, 0, 0], [0, 4, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0], [0, 0, 2, 0]]
        of_warps = [[1 << bit, 0, 0, 0] for bit in every]
        return gl.DistributedLinearLayout(registers, lanes, of_warps, [], [warps, 64, 4, 2])
    registers = [[0, 1], [0, 2], [0, 4], [0, 8]]
    lanes = [[0, 16], [0, 32], [warps, 0], [0, 0], [0, 0]]
    of_warps = [[1 << bit, 0] for bit in every]
    return gl.DistributedLinearLayout(registers, lanes, of_warps, [], [2 * warps, 64])


@gluon.jit
def x_of_lines(memory, LAYOUT: gl.constexpr):
    """The right operand [warps, 64, 8] of `halves_of_lines`: its even columns are the first half
    of a turn of x, the odd ones the second. `memory` [2 * warps, 64] as lanes take it."""
    WARPS: gl.constexpr = memory.shape[0] // 2
    x = memory.load(_x_of_lines(WARPS, False)).reshape([2, WARPS, 4, 4, 2, 2])
    x = x.permute((1, 3, 4, 2, 5, 0)).reshape([WARPS, 64, 2])
    L: gl.constexpr = gl.SliceLayout(2, _x_of_lines(WARPS, True))
    x = gl.expand_dims(gl.convert_layout(x, L, assert_trivial=True), 2)
    x = x.broadcast_to([WARPS, 64, 4, 2]).reshape([WARPS, 64, 8])
    return gl.convert_layout(x, LAYOUT, assert_trivial=True)


@gluon.constexpr_function
def x_layout(warps):
    """Half a turn of rows [warps, 64] in the order of lanes: 16 in a row in each of four."""
    registers = [[0, 1], [0, 2], [0, 4], [0, 8]]
    lanes = [[0, 16], [0, 32], [0, 0], [0, 0], [0, 0]]
    of_warps = [[1 << bit, 0] for bit in range(warps.bit_length() - 1)]
    return gl.DistributedLinearLayout(registers, lanes, of_warps, [], [warps, 64])


@gluon.jit
def pieces(block, AXIS: gl.constexpr, COUNT: gl.constexpr):
    """COUNT parts of a tensor [warps, 64] or [warps, 16, 64] along its last dimension."""
    if COUNT == 1:
        return (block,)
    else:  # noqa: RET505
        SHAPE: gl.constexpr = block.shape
        if AXIS == 1:
            low, high = block.reshape([SHAPE[0], 2, SHAPE[1] // 2]).permute((0, 2, 1)).split()
        else:
            halves = block.reshape([SHAPE[0], SHAPE[1], 2, SHAPE[2] // 2])
            low, high = halves.permute((0, 1, 3, 2)).split()
        return pieces(low, AXIS, COUNT // 2) + pieces(high, AXIS, COUNT // 2)

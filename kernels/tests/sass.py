"""Reads the machine code of a compiled kernel for Hopper GPUs.

An instruction has 16 bytes. Its upper 8 bytes hold from bit 41 on: 4 bits of stall cycles, a yield
flag, the scoreboard (3 bits) that it releases when its result is there, one for its operands (3
bits), and the scoreboards (6 bits) that it waits for. Source: Jia et al., Dissecting the NVIDIA
Volta GPU architecture via microbenchmarking, 2018, section 2.1.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import triton

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
FIRST = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?);\s+/\* 0x[0-9a-f]{16} \*/")
SECOND = re.compile(r"\s+/\* 0x([0-9a-f]{16}) \*/")
NONE = 7


class Instruction(NamedTuple):
    """`address` in hexadecimal, its text, the scoreboard of its result and those it waits for."""

    address: str
    text: str
    result: int
    waits: int


def instructions(cubin: bytes) -> Iterator[Instruction]:
    """Those of all kernels of a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        shown = subprocess.run(
            [CUOBJDUMP, "-sass", file.name], capture_output=True, text=True, check=True
        ).stdout
    address = text = ""
    for line in shown.splitlines():
        if found := FIRST.match(line):
            address, text = found.groups()
        elif found := SECOND.match(line):
            bits = int(found[1], 16) >> 41
            yield Instruction(address, text, bits >> 5 & 7, bits >> 11 & 63)
    assert address, f"no instruction in {shown[:200]!r}"


def early_releases(cubin: bytes, before_barrier: bool) -> list[str]:
    """Addresses of instructions that free a tile of a ring while loads of it may be on their way.

    Those are loads from shared memory whose scoreboard no instruction waits for before the release.
    The order of instructions does not suffice. `before_barrier`: nor before the barrier at which
    the warps meet, so that no other warp's load is on its way either. Kernels need that whose tiles
    may be zeros: the copy engine writes them at once, and other tiles hundreds of cycles later.
    """
    found: list[str] = []
    flying: set[int] = set()
    met: set[int] = set()  # those on their way at the last barrier
    for one in instructions(cubin):
        flying -= {board for board in flying if one.waits >> board & 1}
        if re.search(r"\bMEMBAR\b|(?<!\.)\bDEPBAR\b", one.text):
            flying.clear()
        if before_barrier and re.search(r"\bBAR\.SYNC\b", one.text):
            met = set(flying)
        if re.search(r"\bLDSM?\b", one.text) and one.result != NONE:
            flying.add(one.result)
        if "SYNCS.ARRIVE" in one.text and "A1T0" in one.text and flying | met:
            found.append(one.address)
    return found

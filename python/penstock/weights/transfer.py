"""Copies rows of tensors from files to the device, through pinned buffers.

Several threads copy, each with its own buffer and, on a GPU, its own stream: while one waits for
the device, others read. A mapped file would be copied twice, with a fault on every page; `pread`
copies once, at memory speed if the file is cached.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from penstock.weights.files import StoredTensor
from penstock.weights.target import Target

BUFFER_BYTES = 16 << 20


@dataclass(frozen=True)
class Move:
    """A copy of `rows` rows of a tensor, from row `row` on, to `destination`."""

    stored: StoredTensor
    row: int
    rows: int
    region: tuple[slice, ...]  # of each row; the rest of the dimensions
    destination: Tensor

    @property
    def bytes(self) -> int:
        """Bytes to read from the file; may be more than are kept."""
        return self.rows * self.stored.row_bytes


def moves(stored: StoredTensor, target: Target) -> Iterator[Move]:
    """Splits the target's region into moves that fit a buffer (of one row, if a row does not
    fit)."""
    if not target.region:  # a scalar is one row
        alone = StoredTensor(stored.path, stored.file, stored.offset, (1,), stored.dtype)
        yield Move(alone, 0, 1, (), target.destination.view(1))
        return
    if target.form is not None:  # the same entries in the same order
        stored = replace(stored, shape=target.shape)
    first, *rest = target.region
    most = max(1, BUFFER_BYTES // max(1, stored.row_bytes))
    for row in range(first.start, first.stop, most):
        rows = min(most, first.stop - row)
        destination = target.destination
        if most < first.stop - first.start:
            destination = destination.narrow(0, row - first.start, rows)
        yield Move(stored, row, rows, tuple(rest), destination)


class Mover:
    """Executes moves on the calling threads; `finish` waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._own = threading.local()
        self.finish()  # what was launched before may still write to a destination

    def __call__(self, move: Move) -> int:
        """Returns the bytes written. Raises BadModel if the file cannot be read to the end."""
        with torch.inference_mode():  # a setting of each thread
            staging = self._staging(move.bytes)
            staging.wait()
            part = staging.buffer[: move.bytes]
            move.stored.read(move.row, part.numpy().data)
            rows = part.view(move.stored.dtype).view(move.rows, *move.stored.shape[1:])
            staging.send(rows, move)
        return int(move.destination.nbytes)

    def finish(self) -> None:
        """Returns when the device has done everything."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _staging(self, size: int) -> _StagingBuffer:
        staging: _StagingBuffer | None = getattr(self._own, "staging", None)
        if staging is None or len(staging.buffer) < size:
            if staging is not None:
                staging.wait()
            staging = self._own.staging = _StagingBuffer(max(size, BUFFER_BYTES), self.device)
        return staging


class _StagingBuffer:
    """A thread's buffer, and the stream that empties it."""

    def __init__(self, size: int, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self.device = device
        self.buffer = torch.empty(size, dtype=torch.uint8, pin_memory=cuda)
        self.stream = torch.cuda.Stream(device) if cuda else None

    def wait(self) -> None:
        """Returns when the buffer may be overwritten."""
        if self.stream is not None:
            self.stream.synchronize()

    def send(self, rows: Tensor, move: Move) -> None:
        region = (slice(None), *move.region)
        with torch.cuda.stream(self.stream) if self.stream is not None else nullcontext():
            if self.stream is not None and not self._direct(rows[region], move.destination):
                # Cutting and converting are the device's work: it is faster, and does not wait.
                rows = rows.to(self.device, non_blocking=True)
            move.destination.copy_(rows[region], non_blocking=True)

    @staticmethod
    def _direct(rows: Tensor, destination: Tensor) -> bool:
        plain = rows.is_contiguous() and destination.is_contiguous()
        return plain and rows.dtype == destination.dtype

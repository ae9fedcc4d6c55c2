"""Every way in which a stored tensor becomes a destination, with buffers of every size."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from penstock.faults import BadModel, LoadCancelled
from penstock.weights import Checkpoint, Stage, Target, load_weights, transfer
from penstock.weights import load as load_module
from penstock.weights.files import StoredTensor
from safetensors.torch import save_file

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
STORED = {
    "matrix": torch.randn(37, 24, dtype=torch.bfloat16),
    "vector": torch.randn(50, dtype=torch.bfloat16),
    "cube": torch.randn(5, 6, 7, dtype=torch.bfloat16),
    "scalar": torch.randn((), dtype=torch.bfloat16),
    "wide": torch.randn(8, 4, dtype=torch.float32),
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    save_file(STORED, tmp_path / "model.safetensors")
    return tmp_path


@dataclass(frozen=True)
class Tensors:
    """Targets that are loaded at once."""

    targets: dict[str, Target]

    def checkpoint_targets(self) -> dict[str, list[Target]]:
        return {name: [target] for name, target in self.targets.items()}

    def stages(self) -> list[Stage]:
        raise AssertionError("all memory is allocated")

    def finish(self) -> None:
        pass


def load(directory: Path, targets: dict[str, Target]) -> int:
    ignored = [name for name in STORED if name not in targets]
    with Checkpoint(directory) as checkpoint:
        return load_weights(checkpoint, Tensors(targets), ignored, lambda done, total: None)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("buffer", [1, 100, 1 << 20])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_whole_tensors(
    directory: Path, device: str, buffer: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "BUFFER_BYTES", buffer)
    wanted = {
        n: torch.full(t.shape, torch.nan, dtype=dtype, device=device) for n, t in STORED.items()
    }
    size = load(directory, {name: Target.whole(t) for name, t in wanted.items()})
    assert size == sum(t.nbytes for t in wanted.values())
    for name, tensor in wanted.items():
        torch.testing.assert_close(tensor.cpu(), STORED[name].to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("buffer", [1, 60, 1 << 20])
@pytest.mark.parametrize(
    ("name", "dim", "size"), [("matrix", 1, 3), ("cube", 2, 7), ("cube", 1, 2)]
)
def test_tensor_shards_of_a_rank(  # the middle one, so that neither end is enough
    directory: Path,
    device: str,
    buffer: int,
    name: str,
    dim: int,
    size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transfer, "BUFFER_BYTES", buffer)
    rank, part = size // 2, STORED[name].shape[dim] // size
    share = STORED[name].narrow(dim, rank * part, part)
    found = torch.full(share.shape, torch.nan, dtype=share.dtype, device=device)
    load(directory, {name: Target.share(found, dim, rank, size)})
    torch.testing.assert_close(found.cpu(), share, rtol=0, atol=0)


def test_a_destination_inside_another_tensor(directory: Path) -> None:
    whole = torch.full((60, 24), torch.nan, dtype=torch.bfloat16)
    load(directory, {"matrix": Target.whole(whole[10:47])})
    torch.testing.assert_close(whole[10:47], STORED["matrix"], rtol=0, atol=0)
    assert whole[:10].isnan().all() and whole[47:].isnan().all()


def test_file_truncated_during_loading_is_reported(directory: Path) -> None:
    path = directory / "model.safetensors"
    with Checkpoint(directory) as checkpoint:
        path.write_bytes(path.read_bytes()[:-40])
        tensors = Tensors({name: Target.whole(t.clone()) for name, t in STORED.items()})
        with pytest.raises(BadModel, match="became shorter"):
            load_weights(checkpoint, tensors, [], lambda done, total: None)


def test_dtypes_without_a_counterpart_are_refused_by_name(tmp_path: Path) -> None:
    save_file({"q": torch.zeros(4, dtype=torch.uint16)}, tmp_path / "model.safetensors")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BadModel, match="tensor q is U16"), Checkpoint(tmp_path):
        pass
    assert len(os.listdir("/proc/self/fd")) == len(before), "files stay open"


@pytest.mark.parametrize("wanted", [torch.int8, torch.float32, torch.uint8])
def test_integers_fit_only_what_takes_them(tmp_path: Path, wanted: torch.dtype) -> None:
    """Floats are converted to floats; a quantized tensor is no float, and no other integer."""
    stored = torch.tensor([-3, 0, 127], dtype=torch.int8)
    save_file({"q": stored}, tmp_path / "model.safetensors")
    found = torch.zeros(3, dtype=wanted)
    if wanted == torch.int8:
        load(tmp_path, {"q": Target.whole(found)})
        assert torch.equal(found, stored)
        return
    with pytest.raises(BadModel, match=r"tensor q is int8, but its layer takes (float32|uint8)"):
        load(tmp_path, {"q": Target.whole(found)})


def test_abandoned_load_stops_reading(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "BUFFER_BYTES", 1)  # a row at a time: 50 of the vector
    monkeypatch.setattr(load_module, "BATCH_BYTES", 1)
    monkeypatch.setattr(load_module, "READERS", 1)
    read, done = StoredTensor.read, threading.Event()

    def slow(self: StoredTensor, row: int, buffer: memoryview) -> None:
        done.wait(0 if row == 0 else 60)
        rows.append(row)
        read(self, row, buffer)

    def give_up(*_: int) -> None:
        threading.Timer(0.1, done.set).start()
        raise LoadCancelled("nobody waits")

    rows: list[int] = []
    monkeypatch.setattr(StoredTensor, "read", slow)
    tensors = Tensors({"vector": Target.whole(STORED["vector"].clone())})
    ignored = [name for name in STORED if name != "vector"]
    with Checkpoint(directory) as checkpoint, pytest.raises(LoadCancelled):
        load_weights(checkpoint, tensors, ignored, give_up)
    assert len(rows) < 10

"""bitsandbytes: LLM.int8, NF4 and FP4, while loading and from its checkpoints.

Int8 weights become codes of `packed_linear`; activations are not quantized, which is more exact
than the library's product and needs no columns of outliers. 4-bit weights are multiplied by the
library: their 16 values are not evenly spaced.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from penstock_kernels.packed_linear import Kind
from torch import Tensor

from penstock.faults import BadModel, BadSetting
from penstock.quant.method import LinearMethod, Weights, WeightTensor
from penstock.quant.methods import HEAD, Methods, kept_modules
from penstock.quant.packed import Packed, Quantized
from penstock.quant.settings import Settings
from penstock.quant.unquantized import Plain
from penstock.weights import Flat, FlatBlocks, Form

BLOCK = 64  # numbers of a 4-bit matrix that share a scale
NESTED_BLOCK = 256  # scales that share a scale, if they are quantized (double quantization)


def library() -> ModuleType:
    """The library. Raises BadSetting if it is not installed."""
    try:
        import bitsandbytes
    except ImportError as error:
        raise BadSetting(
            "weights in bitsandbytes need the library of that name, which cannot be imported "
            f"({error}); pip install 'penstock[bitsandbytes]'"
        ) from error
    module: ModuleType = bitsandbytes
    return module


class StoredInt8(Packed):
    """LLM.int8 (arXiv:2208.07339, section 2.1): int8, and per row the largest magnitude."""

    def __init__(self, plain: Plain) -> None:
        super().__init__(Kind.INT8, plain)
        self.scale_dtype = torch.float32

    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        """The matrix, its rows' largest magnitudes, and the number of its layout."""
        device = self.plain.device
        weight = torch.empty((outputs, inputs), dtype=torch.int8, device=device)
        largest = torch.empty(outputs, dtype=torch.float32, device=device)
        layout = torch.empty(1, dtype=torch.uint8, device=device)
        return {
            "weight": WeightTensor(weight, 0, 1),
            "SCB": WeightTensor(largest, 0, None),
            "weight_format": WeightTensor(layout, None, None, RowMajor()),
        }

    def read(self, weights: Weights) -> Quantized:
        """127 stands for the largest magnitude."""
        return _int8(weights["weight"], weights["SCB"])


class Int8(Packed):
    """LLM.int8 of a checkpoint's floats."""

    def __init__(self, plain: Plain) -> None:
        super().__init__(Kind.INT8, plain)
        self.scale_dtype = torch.float32
        self.quantize = library().functional.int8_vectorwise_quant

    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        """The matrix of floats, on the meta device."""
        return _floats(self.plain, outputs, inputs)

    def read(self, weights: Weights) -> Quantized:
        """The library's rounding, which takes float16."""
        codes, largest, _ = self.quantize(weights["weight"].half())
        return _int8(codes, largest)


def _int8(codes: Tensor, largest: Tensor) -> Quantized:
    return Quantized(codes.view(torch.uint8) ^ 0x80, largest.float()[None] / 127)


class Blocks4(NamedTuple):
    """A matrix in NF4 or FP4."""

    codes: Tensor  # [outputs, inputs / 2] uint8, the even input in the upper half
    scales: Tensor  # [outputs, inputs / 64] float32: the largest magnitude of each block


class FourBitMatrix(ABC):
    """A 4-bit matrix, multiplied by the library. A CPU keeps the dequantized matrix, as `Packed`.

    The library numbers blocks along the flat matrix. Here they must divide the inputs of a rank, so
    that rows and columns may be cut.
    """

    def __init__(self, plain: Plain, kind: str) -> None:
        """`kind`: "nf4" or "fp4"."""
        library()  # it registers the ops
        self.plain = plain
        self.kind = kind
        self.on_cpu = plain.device.type == "cpu"
        self.recordable = self.on_cpu and plain.recordable

    @abstractmethod
    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        """Empty tensors for a matrix. Raises BadModel if blocks do not divide the inputs."""

    @abstractmethod
    def read(self, weights: Weights) -> Blocks4:
        """The matrix that loaded tensors stand for."""

    def finish(self, weights: Weights) -> Weights:
        """The codes; on a CPU, the matrix that they stand for."""
        codes, scales = self.read(weights)
        if self.on_cpu:
            return self.plain.finish({"weight": self._matrix(codes, scales).to(self.plain.dtype)})
        return {"codes": codes.contiguous(), "scales": scales.contiguous()}

    def apply(self, weights: Weights, x: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + b: the library chooses between its kernels and the dequantized matrix."""
        if self.on_cpu:
            return self.plain.apply(weights, x, bias)
        codes, scales = weights["codes"], weights["scales"]
        shape = [len(codes), 2 * codes.shape[1]]
        if len(x) == 0:
            return x.new_empty((0, shape[0]))
        flat = codes.view(-1, 1), shape, scales.view(-1)
        found: Tensor = torch.ops.bitsandbytes.gemm_4bit(x, *flat, BLOCK, self.kind, bias)
        return found

    def dequantize(self, weights: Weights) -> Tensor:
        """The matrix that finished weights stand for."""
        if self.on_cpu:
            return self.plain.dequantize(weights)
        return self._matrix(weights["codes"], weights["scales"]).to(self.plain.dtype)

    def _matrix(self, codes: Tensor, scales: Tensor) -> Tensor:
        """[outputs, inputs] float32."""
        shape = [len(codes), 2 * codes.shape[1]]
        flat = codes.reshape(-1, 1), scales.reshape(-1)
        dequantize = torch.ops.bitsandbytes.dequantize_4bit
        found: Tensor = dequantize(*flat, BLOCK, self.kind, shape, torch.float32)
        return found


class FourBit(FourBitMatrix):
    """NF4 or FP4 of a checkpoint's floats."""

    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        """The matrix of floats, on the meta device."""
        _blocks(inputs)
        return _floats(self.plain, outputs, inputs)

    def read(self, weights: Weights) -> Blocks4:
        """The library's rounding."""
        matrix = weights["weight"]
        if matrix.dtype == torch.float64:
            matrix = matrix.float()
        quantize = torch.ops.bitsandbytes.quantize_4bit
        codes, scales = quantize(matrix.contiguous(), BLOCK, self.kind, torch.uint8)
        return Blocks4(codes.view(len(matrix), -1), scales.view(len(matrix), -1))


class StoredFourBit(FourBitMatrix):
    """NF4 or FP4 of the library's checkpoints."""

    def __init__(self, plain: Plain, kind: str, nested: bool) -> None:
        """`nested`: scales are quantized, too. They are kept in float32, which is exact."""
        super().__init__(plain, kind)
        self.nested = nested

    def allocate(self, outputs: int, inputs: int) -> dict[str, WeightTensor]:
        """The flat matrix and its scales, and what the library stores beside them."""
        blocks, device = _blocks(inputs), self.plain.device

        def empty(columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty((outputs, columns), dtype=dtype, device=device)

        def whole(size: int, name: str, form: Form | None = None) -> WeightTensor:
            data = torch.empty(size, dtype=torch.float32, device=device)
            return WeightTensor(data, None, None, form, (f"weight.{name}",))

        state = QuantState(self.kind, self.nested)
        state_name = f"weight.quant_state.bitsandbytes__{self.kind}"
        scales = empty(blocks, torch.uint8 if self.nested else torch.float32)
        found = {
            "weight": WeightTensor(empty(inputs // 2, torch.uint8), 0, 1, Flat()),
            "absmax": WeightTensor(scales, 0, 1, Flat(), ("weight.absmax",)),
            "quant_map": whole(16, "quant_map", ValuesOf(self.kind)),
            "offset": WeightTensor(empty(1), 0, None, state, (state_name,)),
        }
        if self.nested:
            form, name = FlatBlocks(NESTED_BLOCK), "nested_absmax"
            found[name] = WeightTensor(empty(blocks), 0, 1, form, (f"weight.{name}",))
            found["nested_quant_map"] = whole(256, "nested_quant_map")
        return found

    def read(self, weights: Weights) -> Blocks4:
        """The codes, and scales in float32."""
        scales = weights["absmax"]
        if self.nested:
            scales = weights["nested_quant_map"][scales.long()] * weights["nested_absmax"]
            scales = scales + weights["offset"]
        return Blocks4(weights["weight"], scales)


def _floats(plain: Plain, outputs: int, inputs: int) -> dict[str, WeightTensor]:
    data = torch.empty((outputs, inputs), dtype=plain.dtype, device="meta")
    return {"weight": WeightTensor(data, 0, 1)}


def _blocks(inputs: int) -> int:
    """Blocks per row. Raises BadModel if they do not divide the inputs."""
    if inputs % BLOCK:
        raise BadModel(
            f"bitsandbytes shares scales among {BLOCK} numbers, which must divide the inputs of a "
            f"layer, but one (of this rank) has {inputs}; use fewer ranks or another format"
        )
    return inputs // BLOCK


class _Checked(Form):
    """A small tensor whose contents must have a value."""

    def shapes(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """That of the layer's tensor."""
        return [shape]

    def entries(self, stored: Tensor, shape: tuple[int, ...], region: Sequence[slice]) -> Tensor:
        """The tensor."""
        return stored.view(shape)[tuple(region)]


class RowMajor(_Checked):
    """The layout's number of an int8 matrix must be 0; others are tiles of old GPUs."""

    def check(self, name: str, stored: Callable[[], Tensor]) -> None:
        """Raises BadModel for another layout."""
        found = int(stored().item())
        if found != 0:
            raise BadModel(
                f"tensor {name} is {found}, but only int8 matrices stored row by row (0) are "
                "supported; save the checkpoint again with a current version of bitsandbytes"
            )


class ValuesOf(_Checked):
    """The 16 values of codes must be those of the format."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.values: Tensor = library().functional.get_4bit_type(kind, device="cpu")

    def check(self, name: str, stored: Callable[[], Tensor]) -> None:
        """Raises BadModel for other values."""
        if not torch.allclose(stored().float(), self.values, rtol=0, atol=1e-6):
            raise BadModel(f"tensor {name} does not have the 16 values of {self.kind}")


class QuantState(Form):
    """JSON in bytes, of any length: how a 4-bit matrix was quantized. Its entry is the offset of
    nested scales."""

    dtype = torch.uint8

    def __init__(self, kind: str, nested: bool) -> None:
        self.expected: dict[str, Any] = {"quant_type": kind, "blocksize": BLOCK}
        if nested:
            self.expected["nested_blocksize"] = NESTED_BLOCK
        self.nested = nested

    def shapes(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Any number of bytes."""
        return [(-1,)]

    def accepts(self, stored: tuple[int, ...], shape: tuple[int, ...]) -> bool:
        """Whether it is a row of bytes."""
        return len(stored) == 1

    def check(self, name: str, stored: Callable[[], Tensor]) -> None:
        """Raises BadModel if the matrix was quantized in another way."""
        state = _parsed(stored())
        if state is None:
            raise BadModel(f"tensor {name} does not hold a JSON object; download the model again")
        for field, value in self.expected.items():
            if state.get(field) != value:
                raise BadModel(
                    f"tensor {name}: {field} {state.get(field)!r} is not supported; supported: "
                    f"{value!r}"
                )
        if ("nested_offset" in state) != self.nested:
            raise BadModel(
                f"tensor {name}: scales are {'not ' if self.nested else ''}quantized, but "
                f"config.json has bnb_4bit_use_double_quant {self.nested}"
            )

    def entries(self, stored: Tensor, shape: tuple[int, ...], region: Sequence[slice]) -> Tensor:
        """The offset for each output."""
        offset = float((_parsed(stored) or {}).get("nested_offset", 0))
        return torch.full((region[0].stop - region[0].start, 1), offset)


def _parsed(stored: Tensor) -> dict[str, Any] | None:
    try:
        found = json.loads(bytes(stored.tolist()))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def read_bitsandbytes(config: Mapping[str, Any], plain: Plain) -> Methods:
    """quant_method "bitsandbytes". Raises BadModel for settings that are not supported."""
    settings = Settings(config)
    # `threshold` and `dtype`: of activations, which the library splits and converts.
    settings.skip("quant_method", "llm_int8_threshold", "bnb_4bit_compute_dtype")
    settings.skip("llm_int8_skip_modules", "llm_int8_enable_fp32_cpu_offload")
    settings.choice("llm_int8_has_fp16_weight", (False,), False)
    four = _flag(settings, "load_in_4bit")
    if four == _flag(settings, "load_in_8bit"):
        raise settings.error("load_in_4bit or load_in_8bit must be true, and one of them alone")
    kind = settings.choice("bnb_4bit_quant_type", ("nf4", "fp4"), "fp4")
    nested = settings.choice("bnb_4bit_use_double_quant", (True, False), False)
    settings.choice("bnb_4bit_quant_storage", ("uint8",), "uint8")
    settings.done()
    method: LinearMethod = StoredFourBit(plain, kind, nested) if four else StoredInt8(plain)
    # Without a list, transformers keeps the output head.
    listed = config.get("llm_int8_skip_modules") is not None
    kept = kept_modules(config, "llm_int8_skip_modules") if listed else HEAD
    return Methods(plain, method, not_converted=kept)


def _flag(settings: Settings, name: str) -> bool:
    private = settings.choice(f"_{name}", (True, False), False)
    return bool(settings.choice(name, (True, False), private))

"""Checked access to a config.json."""

from __future__ import annotations

import json
import math
import re
from collections import ChainMap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from penstock.faults import BadModel, Unsupported

QUANTIZATION_FILES = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}
MOST = 1 << 31  # no size may be larger: 32-bit indices count it


# Patterns of fields that do not change what a model computes, whatever their values.
_NEUTRAL = (
    # Names, versions, labels, token ids, and how transformers runs the model.
    r"_.*|architectures|model_type|(model_)?name(_or_path)?|transformers[._]\w+|unsloth_\w+",
    r"auto_map|id2label|label2id|problem_type|finetuning_task|task_specific_params|tokenizer_class",
    r"\w+_token_id|(torch_)?dtype|use_cache|cache_implementation|attn_implementation|torchscript",
    r"use_flash_\w+|quantization_config|compression_config|is_decoder|is_llama_config",
    # Training.
    r"initializer_\w+|\w*(dropout|pdrop)(_rate|_prob)?|pretraining_tp|gradient_checkpointing",
    r"output_router_logits|router_(aux_loss_coef|jitter_noise|z_loss_coef)|summary_\w+",
    # Generation, which requests and generation_config.json describe, and limits of tokenizers.
    r"bad_words_ids|(begin_)?suppress_tokens|diversity_penalty|do_sample|early_stopping",
    r"(encoder_)?no_repeat_ngram_size|\w*length_penalty|repetition_penalty|(max|min)_length",
    r"num_(beams|beam_groups|return_sequences)|temperature|top_[kp]|typical_p|chunk_size_\w+",
    r"output_(hidden_states|attentions|scores)|return_dict(_in_generate)?|remove_invalid_values",
    r"(tokenizer_)?model_max_length|max_sequence_length|max_tokenizer_truncation",
)
_IS_NEUTRAL = re.compile("|".join(_NEUTRAL))


class ReadFields(Mapping[str, Any]):
    """A config.json that remembers which of its fields were read."""

    def __init__(self, raw: Mapping[str, Any], path: str = "") -> None:
        """`path`: where in config.json these fields are, for errors."""
        self._raw = raw
        self._path = path
        self._read: set[str] = set()
        self._sections: list[ReadFields] = []

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._raw[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)

    def section(self, name: str) -> ReadFields:
        """Returns the object under `name`, whose fields count too."""
        found = ReadFields(self[name], f"{self._path}{name}.")
        self._sections.append(found)
        return found

    def refuse_unread(self) -> None:
        """Raises BadModel for a field that was not read and may change what the model computes:
        one that is set, to another number than 0 and 1."""
        for name, value in self._raw.items():
            unset = value is None or value in (0, "") or value == [] or value == {}
            neutral = unset or (value == 1 and value is not True)
            if name not in self._read and not neutral and not _IS_NEUTRAL.fullmatch(name):
                raise Unsupported(
                    f"config.json: {self._path}{name} {value!r} is not supported: the family has "
                    "no such field; if it does not change what the model computes, remove it"
                )
        for section in self._sections:
            section.refuse_unread()


class Renamed(Mapping[str, Any]):
    """The fields of a config.json that it sets under other names, by the names that families
    share. For a layer of `layered`; errors have the names of config.json."""

    def __init__(self, raw: Mapping[str, Any], names: Mapping[str, str]) -> None:
        """`names`: config.json's names, and those in their place."""
        self._raw = raw
        self._old = {new: old for old, new in names.items() if raw.get(old) is not None}

    def __getitem__(self, name: str) -> Any:
        return self._raw[self._old[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._old)

    def __len__(self) -> int:
        return len(self._old)

    def spelled(self, name: str) -> str:
        """Returns config.json's name of one of these fields."""
        return _spelled(self._raw, self._old[name])


def _spelled(raw: Mapping[str, Any], name: str) -> str:
    layers = raw.maps if isinstance(raw, ChainMap) else [raw]
    first = next((layer for layer in layers if name in layer), None)
    if isinstance(first, Renamed):
        return first.spelled(name)
    return _spelled(first, name) if isinstance(first, ChainMap) else name


def layered(*layers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the fields of all `layers`; of a field that several have, the first layer's."""
    return ChainMap(*(cast("dict[str, Any]", layer) for layer in layers))


class Fields:
    """Checked access to the fields of a config.json.

    Raises BadModel, naming the field, where one is missing or has a value of the wrong kind.
    """

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw

    def spelled(self, name: str) -> str:
        """Returns the name that config.json has for a field, for errors."""
        return _spelled(self.raw, name)

    def _at(self, name: str) -> str:
        return f"config.json: {self.spelled(name)}"

    def number(self, name: str, default: float | None = None) -> float:
        """Returns the number under `name`; absent or null gives `default`, or an error without
        one."""
        value = self.raw.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
            raise BadModel(f"{self._at(name)} must be a number, found {value!r}")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        """As `number`, above 0 and small enough for float32."""
        value = self.number(name, default)
        if not 0 < value < 1e38:
            raise BadModel(f"{self._at(name)} must be a number above 0, found {value!r}")
        return float(value)

    def positives(self, name: str) -> tuple[float, ...]:
        """Returns the list of numbers above 0 under `name`."""
        values = self.raw.get(name)
        if not isinstance(values, list):
            raise BadModel(f"{self._at(name)} must be a list of numbers, found {values!r}")
        spelled = self.spelled(name)
        return tuple(Fields({spelled: value}).positive(spelled) for value in values)

    def each(self, name: str, layers: int) -> list[Fields]:
        """For each layer, fields with its own `name`: of a list, or these fields if all layers
        share them. Raises BadModel for a list of another length."""
        found = self.raw.get(name)
        if not isinstance(found, list):
            return [self] * layers
        if len(found) != layers:
            raise BadModel(
                f"{self._at(name)} must have a number for each of {layers} layers, and has "
                f"{len(found)}"
            )
        return [Fields({name: number}) for number in found]

    def section(self, name: str) -> Fields:
        """Returns the object under `name`."""
        value = self.raw.get(name)
        if not isinstance(value, Mapping):
            raise BadModel(f"{self._at(name)} must be an object, found {value!r}")
        return Fields(self.raw.section(name) if isinstance(self.raw, ReadFields) else value)

    def optional(self, name: str) -> float:
        """As `positive`; absent or null gives 0, which stands for none."""
        return 0.0 if self.raw.get(name) is None else self.positive(name)

    def count(self, name: str, default: int | None = None) -> int:
        """As `number`, for a whole number of at least one."""
        value = self.number(name, default)
        if value != int(value) or not 1 <= value < MOST:
            rule = f"a whole number from 1 to {MOST - 1}"
            raise BadModel(f"{self._at(name)} must be {rule}, found {value!r}")
        return int(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """Returns the boolean under `name`."""
        value = self.raw.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise BadModel(f"{self._at(name)} must be true or false, found {value!r}")
        return value

    def ignore(self, *names: str) -> None:
        """Accepts any value of fields that change nothing."""
        for name in names:
            self.raw.get(name)

    def require_unset(self, *names: str) -> None:
        """Rejects a model that sets one of `names` to anything but null or false."""
        for name in names:
            value = self.raw.get(name)
            if value not in (None, False):
                raise Unsupported(f"{self._at(name)} {value!r} is not supported")

    def require_at_most(self, name: str, most: int) -> None:
        """Rejects a model whose number under `name` is present and above `most`."""
        if self.number(name, 0) > most:
            raise Unsupported(f"{self._at(name)} above {most} is not supported")

    def require(self, name: str, wanted: Any) -> None:
        """Rejects a model whose `name` is present and not `wanted`: it would be computed
        wrongly."""
        value = self.raw.get(name)
        if value is not None and value != wanted:
            raise Unsupported(f"{self._at(name)} {value!r} is not supported, only {wanted!r} is")


def _finite(value: float) -> bool:
    """Also accepts an integer of a thousand digits, for which isfinite raises."""
    return -math.inf < value < math.inf


def read_config(directory: Path) -> dict[str, Any]:
    """Returns the parsed config.json of a model directory. Raises BadModel.

    Its quantization_config may come from a file of its own, as AutoGPTQ and AutoAWQ once wrote it.
    """
    path = directory / "config.json"
    if not directory.is_dir():
        raise BadModel(f"model directory {directory} does not exist; check --model")
    if not path.is_file():
        raise BadModel(f"{path} is missing: {directory} is not a model directory in HF format")
    raw = _object(path)
    for name, method in QUANTIZATION_FILES.items():
        if not raw.get("quantization_config") and (directory / name).is_file():
            raw["quantization_config"] = {"quant_method": method, **_object(directory / name)}
    return raw


def _object(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise BadModel(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise BadModel(f"{path} must hold a JSON object")
    return raw

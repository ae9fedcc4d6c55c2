"""Writes a checkpoint of another layout as config.json, *.safetensors and tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from penstock.convert import checkpoint, config, parameters, pickles
from penstock.convert.output import CONFIG, Output
from penstock.convert.pickles import Pickles
from penstock.faults import BadModel
from penstock.progress import Bar
from penstock.tokenizer import convert as convert_tokenizer

SHARD_BYTES = 4 << 30
PARAMETERS = "params.json"
TOKENIZER = "tokenizer.json"
READS = (
    "penstock convert reads params.json with consolidated.*.pth or consolidated.safetensors "
    f"(Meta's and Mistral's own checkpoints), and config.json with {pickles.SINGLE} or with "
    f"{pickles.INDEX} and its files"
)
SHOWN = 5


@dataclass(frozen=True)
class Report:
    """What was written. refused: why the tokenizer was not converted. assumed: values of
    config.json that the checkpoint does not have. left_out: tensors that were not written, and
    why."""

    out: Path
    tensors: int
    bytes: int
    tokenizer: str | None
    refused: str = ""
    assumed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def text(self) -> str:
        """Returns lines for the user."""
        lines = [f"{self.out}: {self.tensors} tensors, {self.bytes / 1e9:.2f} GB"]
        lacking = f"not converted: {self.refused}" if self.refused else "none found"
        lines.append(f"tokenizer: {self.tokenizer or f'{lacking}; add tokenizer.json'}")
        lines += [f"assumed: {each}" for each in self.assumed]
        lines += [f"left out: {each}" for each in self.left_out]
        return "\n".join(lines)


def convert(source: Path, out: Path, shard_bytes: int = SHARD_BYTES) -> Report:
    """Converts the checkpoint in `source` into the new folder `out`; config.json is written last.
    Raises BadSetting or BadModel."""
    has_config = (source / CONFIG).is_file()
    is_own = not has_config or any(source.glob("consolidated*"))
    if is_own and (source / PARAMETERS).is_file():
        with Output(out, shard_bytes) as output:
            return _from_own_layout(source, output)
    if has_config and any(source.glob("*.safetensors")):
        raise BadModel(
            f"{source} has {CONFIG} and *.safetensors already: there is nothing to convert; serve "
            f"it with --model {source}"
        )
    found = pickles.find(source) if has_config else None
    if found is None:
        names = sorted(file.name for file in source.iterdir())
        raise BadModel(f"{source} has {_shortened(names) or 'no files'}; {READS}")
    with Output(out, shard_bytes) as output:
        return _from_pickles(found, output)


def _from_own_layout(source: Path, output: Output) -> Report:
    """Writes the tensors of Meta's or Mistral's own checkpoint."""
    read = parameters.read(source / PARAMETERS)
    shards = checkpoint.shards(source)
    output.check_space(sum(tensor.nbytes for shard in shards for tensor in shard.values()))
    tokenizer = convert_tokenizer(source, output.folder)
    for name, tensor in checkpoint.tensors(shards, read):
        output.add(name, tensor)
    output.flush()
    meta = any(source.glob("consolidated.*.pth"))
    content, assumed = config.of_parameters(read, output, meta=meta)
    output.write(CONFIG, content)
    output.finish()
    found = None if tokenizer is None else tokenizer.name
    return Report(output.out, len(output.shapes), output.bytes, found, assumed=tuple(assumed))


def _from_pickles(found: Pickles, output: Output) -> Report:
    """Writes the tensors of pickles, a file at a time, and copies all else. A tokenizer that cannot
    be converted does not end that: its user may have another one."""
    tied = _may_be_tied(found.folder / CONFIG)
    output.check_space(found.bytes)
    output.copy(found.folder)
    tokenizer, refused = _tokenizer(found.folder, output.folder)
    left_out = _LeftOut(tied)
    with Bar("converting", found.bytes, "bytes") as bar:
        for name in found.files:
            _write(left_out.without(found.load(name)), output, bar)
    output.finish()
    size = len(output.shapes), output.bytes
    return Report(output.out, *size, tokenizer, refused, left_out=left_out.lines())


def _tokenizer(folder: Path, out: Path) -> tuple[str | None, str]:
    """Converts the tokenizer of a folder, if it must be: the name of its file, or why it cannot."""
    if (folder / TOKENIZER).is_file():
        return TOKENIZER, ""
    try:
        converted = convert_tokenizer(folder, out)
    except BadModel as error:
        return None, str(error)
    return (None if converted is None else converted.name), ""


def _write(tensors: Mapping[str, Tensor], output: Output, bar: Bar) -> None:
    """Writes the tensors of a file, before the next one needs memory."""
    for name, tensor in pickles.apart(tensors):
        output.add(name, tensor)
        bar.at(output.bytes)
    output.flush()


class _LeftOut:
    """The tensors of a checkpoint that are not written.

    tied: whether a head that is the embedding is one of them.
    """

    def __init__(self, tied: bool) -> None:
        self.tied = tied
        self._embedding: str | None = None
        self._tables: list[str] = []

    def without(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a file that are written."""
        tables = pickles.tables(tensors)
        self._tables += tables
        dropped = set(tables)
        if self.tied and (embedding := pickles.tied_to(tensors)):
            self._embedding = embedding
            dropped.add(pickles.HEAD)
        return {name: tensor for name, tensor in tensors.items() if name not in dropped}

    def lines(self) -> tuple[str, ...]:
        """What they are, for the user."""
        lines = [f"{pickles.HEAD}, which is {self._embedding}"] if self._embedding else []
        if self._tables:
            count, names = len(self._tables), _shortened(self._tables)
            lines.append(f"{count} tables that models compute: {names}")
        return tuple(lines)


def _may_be_tied(path: Path) -> bool:
    """Whether the model may multiply by its embedding in place of a head. Families have different
    defaults, so only config.json's own word excludes it. Raises BadModel."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadModel(f"{path} cannot be read: {error}") from error
    return not isinstance(raw, dict) or raw.get("tie_word_embeddings") is not False


def _shortened(names: Sequence[str]) -> str:
    """The first names, for messages."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more

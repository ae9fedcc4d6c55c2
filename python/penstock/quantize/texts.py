"""The texts that a model is calibrated with and measured on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.faults import BadModel, BadSetting
from penstock.quantize.options import Job

INCLUDED = Path(__file__).with_name("calibration.txt")
MEASURED = 8  # one text in 8 is measured on, and not calibrated with


@dataclass(frozen=True)
class Texts:
    """Token ids."""

    calibration: list[list[int]]
    measured: list[list[int]]


def read_texts(job: Job, length: int, vocab: int) -> Texts:
    """Reads a file of texts, one a line, and encodes them with the model's tokenizer. Raises
    BadSetting or BadModel."""
    path = job.calibration or INCLUDED
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"calibration file {path} cannot be read: {error}") from error
    ids = [one[:length] for one in _encoded(job.model, [line for line in lines if line.strip()])]
    ids = [one for one in ids if len(one) > 1][: job.options.samples]
    if len(ids) < 2:
        raise BadSetting(f"calibration file {path} has {len(ids)} texts; at least 2 are needed")
    if (largest := max(map(max, ids))) >= vocab:
        raise BadModel(f"the tokenizer gives token {largest}, but the model has {vocab}")
    measured = ids[::MEASURED]
    return Texts([one for index, one in enumerate(ids) if index % MEASURED], measured)


def _encoded(model: Path, texts: Sequence[str]) -> list[list[int]]:
    try:
        from tokenizers import Tokenizer  # of the extra "quantize": serving does not need it
    except ImportError as error:
        raise BadSetting(
            "penstock quantize needs the package tokenizers: pip install 'penstock[quantize]'"
        ) from error
    path = model / "tokenizer.json"
    if not path.is_file():
        raise BadModel(f"{path} is missing")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise BadModel(f"{path} cannot be read: {error}") from error
    return [encoded.ids for encoded in tokenizer.encode_batch(list(texts))]

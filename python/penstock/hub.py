"""Downloads a model from the hub: `python -m penstock.hub download ID --revision R`, to convert it
with `--to-convert`.

Called by the launcher, which draws the progress bar. Prints one JSON object per line on stdout,
`{"event": ...}`: `plan` (bytes to fetch), `progress` (bytes so far), and at the end `done` (path)
or `error` (message for the user). huggingface_hub does the work, with its cache and settings.
"""

from __future__ import annotations

import argparse
import errno
import json
import re
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, constants, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

REPORT_SECONDS = 0.2
ROOT_FILES = (
    *(".safetensors", ".json", ".jinja"),
    *("tokenizer.model", "tiktoken.model", ".tiktoken", "merges.txt"),
)
TEMPLATE_FOLDER = "additional_chat_templates/"
PICKLES = re.compile(r"pytorch_model([-_]\d+-of-\d+)?\.bin")
"""Weights that are converted, not served."""


class HubError(Exception):
    """A download that cannot succeed; the message is for the user."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a hub model. name: path in the repository; size: bytes."""

    name: str
    size: int


def emit(event: str, **fields: object) -> None:
    """Prints one event for the launcher."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def needed_files(names: Iterable[str]) -> set[str]:
    """Returns the files that serving needs: weights, configuration, tokenizer, chat templates."""
    names = list(names)
    chosen = {name for name in names if "/" not in name and name.endswith(ROOT_FILES)}
    chosen |= {name for name in names if name.startswith(TEMPLATE_FOLDER)}
    # Some repositories hold the same weights twice, also in their vendor's own layout.
    if any(name.startswith("model") and name.endswith(".safetensors") for name in chosen):
        chosen = {name for name in chosen if not name.startswith("consolidated")}
    return chosen


def files_to_convert(model: str, names: Iterable[str]) -> set[str]:
    """Returns the files that `penstock convert` needs. Raises HubError if there is nothing to
    convert."""
    names = list(names)
    chosen = needed_files(names)
    own = {name for name in chosen if name.startswith("consolidated")}
    if "config.json" in chosen and any(name.endswith(".safetensors") for name in chosen - own):
        raise HubError(
            f"{model} has config.json and *.safetensors already: there is nothing to convert; "
            f"serve it with --model {model}"
        )
    pickles = {name for name in names if PICKLES.fullmatch(name)}
    if not ("params.json" in chosen and own) and not ("config.json" in chosen and pickles):
        raise HubError(
            f"{model} has neither config.json with pytorch_model.bin nor params.json with "
            "consolidated.safetensors: there is nothing that penstock convert reads."
        )
    return chosen | pickles


def check_files(model: str, names: Iterable[str], chosen: set[str]) -> None:
    """Raises HubError for a repository that cannot be served."""
    names = list(names)
    if any(name.endswith(".safetensors") for name in chosen):
        if "config.json" in chosen:
            return
        raise HubError(f"{model} has no config.json, so it is not a model that can be served.")
    if any(name.endswith((".bin", ".pt", ".pth")) for name in names):
        remedy = "Choose a model or a revision with *.safetensors."
        if any(PICKLES.fullmatch(name) for name in names):
            remedy = f"Run `penstock convert {model} OUT`, and serve OUT."
        raise HubError(
            f"{model} has only pickled weights (*.bin), which can run code when loaded. {remedy}"
        )
    raise HubError(f"{model} has no *.safetensors files, so there are no weights to serve.")


def remote_files(model: str, revision: str, to_convert: bool) -> list[RemoteFile]:
    """Lists the files to download. Raises HubError, or what huggingface_hub raises."""
    info = HfApi().model_info(model, revision=revision, files_metadata=True)
    siblings = info.siblings or []
    names = [sibling.rfilename for sibling in siblings]
    if to_convert:
        chosen = files_to_convert(model, names)
    else:
        chosen = needed_files(names)
        check_files(model, names, chosen)
    return [RemoteFile(s.rfilename, s.size or 0) for s in siblings if s.rfilename in chosen]


def missing_bytes(model: str, revision: str, files: list[RemoteFile]) -> int:
    """Returns the bytes of the files that are not in the cache."""
    cached = (try_to_load_from_cache(model, f.name, revision=revision) for f in files)
    pairs = zip(files, cached, strict=True)
    return sum(file.size for file, path in pairs if not isinstance(path, str))


def blobs(model: str) -> Path:
    """Returns the directory where huggingface_hub stores file contents, unfinished ones too."""
    folder = "models--" + model.replace("/", "--")
    return Path(constants.HF_HUB_CACHE) / folder / "blobs"


def check_space(model: str, needed: int) -> None:
    """Raises HubError when the disk of the cache has less than `needed` bytes left."""
    folder = Path(constants.HF_HUB_CACHE).absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise HubError(
            f"{model} needs {needed / 1e9:.1f} GB more, but only {free / 1e9:.1f} GB are free in "
            f"{folder}. Free some space, or set HF_HOME to a larger disk."
        )


def stored_bytes(folder: Path) -> int:
    """Returns the bytes of all files in `folder`."""
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # renamed since it was listed
            continue
    return total


@contextmanager
def progress_of(model: str) -> Iterator[None]:
    """Reports the growth of the cache while the body runs."""
    folder, stop = blobs(model), threading.Event()
    before = stored_bytes(folder)

    def report() -> None:
        while not stop.wait(REPORT_SECONDS):
            emit("progress", bytes=max(0, stored_bytes(folder) - before))

    reporter = threading.Thread(target=report, daemon=True)
    reporter.start()
    try:
        yield
    finally:
        stop.set()
        reporter.join()


def fetch(model: str, revision: str, to_convert: bool) -> str:
    """Downloads the missing files and returns the model's directory. Raises HubError."""
    try:
        files = remote_files(model, revision, to_convert)
    except HubError:
        raise
    except (GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise HubError(refusal(model, revision, error)) from error
    except HFValidationError as error:
        raise HubError(f"{model} is not a hub id: {error}") from error
    except Exception as error:  # huggingface_hub may use any HTTP library
        return cached(model, revision, error, to_convert)
    needed = missing_bytes(model, revision, files)
    emit("plan", bytes=needed)
    check_space(model, needed)
    with progress_of(model):
        return snapshot_download(model, revision=revision, allow_patterns=[f.name for f in files])


def refusal(model: str, revision: str, error: Exception) -> str:
    """Returns the message for a refusal by the hub."""
    if isinstance(error, GatedRepoError):
        return (
            f"{model} is gated: accept its terms on its page on the hub, then set HF_TOKEN or run "
            "`hf auth login`."
        )
    if isinstance(error, RevisionNotFoundError):
        return f"{model} has no revision {revision!r}: name a branch, a tag or a commit."
    return (
        f"the hub has no model {model!r} that you may see. Check the spelling "
        "(organisation/name); for a private one set HF_TOKEN or run `hf auth login`."
    )


def cached(model: str, revision: str, cause: Exception, to_convert: bool) -> str:
    """Returns the cached copy when the hub is unreachable. Raises HubError."""
    config = try_to_load_from_cache(model, "config.json", revision=revision)
    weights = "pytorch_model*.bin" if to_convert else "*.safetensors"
    if isinstance(config, str) and any(Path(config).parent.glob(weights)):
        return str(Path(config).parent)
    if isinstance(cause, OfflineModeIsEnabled):
        why = "HF_HUB_OFFLINE is set"
    else:
        why = f"the hub cannot be reached ({type(cause).__name__}: {cause})"
    raise HubError(
        f"{model} (revision {revision}) is not in the local cache, and {why}. Connect and try "
        "again, or give a directory to --model."
    ) from cause


def download(model: str, revision: str, to_convert: bool) -> int:
    """Downloads, reports events, and returns the exit code."""
    try:
        emit("done", path=fetch(model, revision, to_convert))
    except HubError as error:
        emit("error", message=str(error))
    except OSError as error:
        if error.errno == errno.ENOSPC:
            emit("error", message=f"the disk is full: {constants.HF_HUB_CACHE} has no space left.")
        else:
            emit("error", message=f"downloading {model} failed: {error}. Run it again to go on.")
    except Exception as error:
        emit("error", message=f"downloading {model} failed: {error}. Run it again to go on.")
    else:
        return 0
    return 1


def main() -> int:
    """The command line, for the launcher."""
    parser = argparse.ArgumentParser(prog="python -m penstock.hub", description=__doc__)
    command = parser.add_subparsers(required=True).add_parser("download")
    command.add_argument("model")
    command.add_argument("--revision", default="main")
    command.add_argument("--to-convert", action="store_true")
    arguments = parser.parse_args()
    return download(arguments.model, arguments.revision, arguments.to_convert)


if __name__ == "__main__":
    sys.exit(main())

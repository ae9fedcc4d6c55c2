"""`penstock download` and `convert` against a stand-in for the hub: huggingface_hub's own client,
over HTTP."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from serving import children, wait_gone

COMMIT = "a" * 40
WEIGHTS = os.urandom(300_000)
GOOD = {
    "config.json": b"{}",
    "tokenizer.json": b'{"version":"1.0"}',
    "tiktoken.model": b"IQ== 0",
    "merges.txt": b"#version: 0.2",
    "model.safetensors": WEIGHTS,
    "README.md": b"not wanted",
    "pytorch_model.bin": b"not wanted",
    "original/params.json": b"not wanted",
}


def pickled() -> bytes:
    file = io.BytesIO()
    torch.save({"a": torch.arange(3)}, file)
    return file.getvalue()


PICKLED = {
    "config.json": b"{}",
    "pytorch_model.bin": pickled(),
    "merges.txt": b"#version: 0.2",
    "vocab.json": b"{}",
    "flax_model.msgpack": b"not wanted",
    "onnx/merges.txt": b"not wanted",
}


@dataclass
class Repository:
    """One model of the stand-in. sizes: what the listing claims, where it is not the truth;
    stalled: set once the weights are requested, which never arrive."""

    files: dict[str, bytes]
    sizes: dict[str, int] = field(default_factory=dict)
    gated: bool = False
    stalled: threading.Event | None = None

    def listing(self, name: str) -> bytes:
        siblings = [
            {"rfilename": file, "size": self.sizes.get(file, len(body)), "blobId": "b" * 40}
            for file, body in self.files.items()
        ]
        return json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode()

    def tree(self) -> bytes:
        entries = [
            {"type": "file", "path": file, "size": len(body), "oid": "b" * 40}
            for file, body in self.files.items()
        ]
        return json.dumps(entries).encode()


REPOSITORIES = {
    "org/good": Repository(GOOD),
    "org/pickled": Repository(PICKLED),
    "org/old": Repository({"config.json": b"{}", "model.pt": b"x"}),
    "org/empty": Repository({"config.json": b"{}"}),
    "org/huge": Repository(GOOD, sizes={"model.safetensors": 10**17}),
    "org/gated": Repository(GOOD, gated=True),
    "org/stalled": Repository(GOOD, stalled=threading.Event()),
}
OVER = threading.Event()


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's API as a download needs."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(send_body=True)

    def do_HEAD(self) -> None:
        self.answer(send_body=False)

    def answer(self, send_body: bool) -> None:
        parts = self.path.split("?")[0].strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        parts = parts[2:] if api else parts
        name, rest = "/".join(parts[:2]), parts[2:]
        repository = REPOSITORIES.get(name)
        if repository is None:
            return self.reply(401, b"{}", {"X-Error-Code": "RepoNotFound"}, send_body)
        if repository.gated:
            return self.reply(403, b"{}", {"X-Error-Code": "GatedRepo"}, send_body)
        revision = rest[1] if len(rest) > 1 else "main"
        if revision not in ("main", COMMIT):
            return self.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, send_body)
        if api:
            body = repository.tree() if rest[:1] == ["tree"] else repository.listing(name)
            return self.reply(200, body, {"Content-Type": "application/json"}, send_body)
        file = "/".join(rest[2:])
        if file not in repository.files:
            return self.reply(404, b"", {"X-Error-Code": "EntryNotFound"}, send_body)
        if send_body and repository.stalled and file == "model.safetensors":
            repository.stalled.set()
            OVER.wait()
        headers = {"ETag": f'"{abs(hash(file)):040x}"', "X-Repo-Commit": COMMIT}
        return self.reply(200, repository.files[file], headers, send_body)

    def reply(self, status: int, body: bytes, headers: dict[str, str], send_body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if send_body:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    OVER.set()
    server.shutdown()


def environment(home: Path, endpoint: str, **variables: str) -> dict[str, str]:
    """In which the stand-in is the hub."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "HF_"))}
    hub = {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1"}
    return {**kept, **hub, **variables}


def download(home: Path, endpoint: str, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `penstock download`."""
    return penstock(home, endpoint, "download", *arguments, **variables)


def penstock(home: Path, endpoint: str, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        env=environment(home, endpoint, **variables),
        capture_output=True,
        text=True,
        timeout=90,
        stdin=subprocess.DEVNULL,
    )
    assert "Traceback" not in done.stderr and "panicked" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def test_download_fetches_only_needed_files_once(tmp_path: Path, endpoint: str) -> None:
    code, out, err = download(tmp_path, endpoint, "org/good")
    assert code == 0, err
    folder = Path(out.strip())
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    tokenizer = {"tokenizer.json", "tiktoken.model", "merges.txt"}
    assert names == {"config.json", "model.safetensors", *tokenizer}
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert "downloading org/good: 293" in err  # KiB
    again, out, err = download(tmp_path, endpoint, "org/good", "--revision", "main")
    assert (again, Path(out.strip())) == (0, folder), err


def test_offline_mode_uses_the_cache(tmp_path: Path, endpoint: str) -> None:
    assert download(tmp_path, endpoint, "org/good")[0] == 0
    code, out, err = download(tmp_path, endpoint, "org/good", HF_HUB_OFFLINE="1")
    assert code == 0, err
    assert (Path(out.strip()) / "model.safetensors").read_bytes() == WEIGHTS
    code, _, err = download(tmp_path, "http://127.0.0.1:9", "org/good")
    assert code == 0, f"an unreachable hub must not hide the cache: {err}"


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (["org/missing"], {}, ["no model 'org/missing'", "HF_TOKEN"]),
        (["org/gated"], {}, ["gated", "HF_TOKEN"]),
        (["org/good", "--revision", "v9"], {}, ["no revision 'v9'"]),
        (["org/pickled"], {}, ["only pickled weights", "`penstock convert org/pickled OUT`"]),
        (["org/old"], {}, ["only pickled weights", "a revision with *.safetensors"]),
        (["org/empty"], {}, ["no *.safetensors"]),
        (["org/huge"], {}, ["100000000.0 GB", "free", "HF_HOME"]),
        (["org/good"], {"HF_HUB_OFFLINE": "1"}, ["not in the local cache", "HF_HUB_OFFLINE"]),
        (["org/good"], {"HF_ENDPOINT": "http://127.0.0.1:9"}, ["cannot be reached"]),
    ],
    ids=[
        "missing",
        "gated",
        "revision",
        "pickled",
        "old",
        "empty",
        "no space",
        "offline",
        "unreachable",
    ],
)
def test_failed_download_explains_why(
    tmp_path: Path,
    endpoint: str,
    arguments: list[str],
    variables: dict[str, str],
    words: list[str],
) -> None:
    code, out, err = download(tmp_path, endpoint, *arguments, **variables)
    assert (code, out) == (1, ""), err
    for word in words:
        assert word in err


def test_a_pickled_model_of_the_hub_is_converted(tmp_path: Path, endpoint: str) -> None:
    out = tmp_path / "out"
    code, shown, err = penstock(tmp_path, endpoint, "convert", "org/pickled", str(out))
    assert code == 0, err
    assert "tokenizer: not converted: " in shown and "; add tokenizer.json" in shown
    assert load_file(out / "model-00001-of-00001.safetensors")["a"].tolist() == [0, 1, 2]
    index = "model.safetensors.index.json"
    kept = {"config.json", "merges.txt", "vocab.json"}
    assert {file.name for file in out.iterdir()} == {
        *kept,
        "model-00001-of-00001.safetensors",
        index,
    }
    code, _, err = penstock(
        tmp_path, endpoint, "convert", "org/pickled", str(tmp_path / "again"), HF_HUB_OFFLINE="1"
    )
    assert code == 0, f"the cache has the files: {err}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["org/good"], ["org/good has config.json and *.safetensors already", "--model org/good"]),
        (["org/old"], ["org/old has neither config.json with pytorch_model.bin nor params.json"]),
        (["org/missing"], ["no model 'org/missing'"]),
        (["org/pickled", "--revision", "v9"], ["no revision 'v9'"]),
        (["./nowhere"], ["no such directory"]),
    ],
)
def test_failed_conversion_explains_why(
    tmp_path: Path, endpoint: str, arguments: list[str], words: list[str]
) -> None:
    model, *options = arguments
    out = tmp_path / "out"
    code, _, err = penstock(tmp_path, endpoint, "convert", model, str(out), *options)
    assert code == 1 and not out.exists(), err
    for word in words:
        assert word in err


def test_interrupted_download_ends_at_once(tmp_path: Path, endpoint: str) -> None:
    # What runs in the background may have been told to ignore Ctrl-C.
    code = """
import signal, penstock
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    penstock.LLM("org/stalled", device="cpu", progress=False)
except KeyboardInterrupt:
    print("interrupted")
"""
    stalled = REPOSITORIES["org/stalled"].stalled
    assert stalled is not None
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment(tmp_path, endpoint, HF_HUB_DOWNLOAD_TIMEOUT="600"),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert stalled.wait(60)
    downloads = children(process.pid)
    process.send_signal(signal.SIGINT)  # as a notebook does: to this process alone
    out, _ = process.communicate(timeout=60)
    assert out.strip() == "interrupted"
    assert downloads
    wait_gone(downloads)


def test_a_download_ends_with_the_launcher(tmp_path: Path, endpoint: str) -> None:
    stalled = REPOSITORIES["org/stalled"].stalled
    assert stalled is not None
    stalled.clear()
    launcher = subprocess.Popen(
        [sys.executable, "-m", "penstock", "download", "org/stalled"],
        env=environment(tmp_path, endpoint, HF_HUB_DOWNLOAD_TIMEOUT="600"),
    )
    assert stalled.wait(60)
    downloads = children(launcher.pid)
    launcher.kill()
    launcher.wait(60)
    assert downloads
    wait_gone(downloads)

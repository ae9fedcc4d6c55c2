"""Keys, the admin token, hosts, origins and TLS, from the command line to the socket."""

from __future__ import annotations

import hashlib
import shutil
import signal
import ssl
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx
import pytest
from serving import Server, free_port, worker_sockets

CERTIFICATES = Path(__file__).parents[2] / "router/http/tests/all/certificates"
KEY, SECOND, TOKEN = "sk-e2e-first", "sk-e2e-second", "admin-e2e"
ORIGIN = "https://chat.example"


@dataclass
class SecureServer(Server):
    """A server with TLS."""

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the certificate and its key."""
    folder = tmp_path_factory.mktemp("access")
    shutil.copy(CERTIFICATES / "first.pem", folder / "cert.pem")
    shutil.copy(CERTIFICATES / "first.key", folder / "key.pem")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    hashed = "sha256:" + hashlib.sha256(SECOND.encode()).hexdigest()
    options = ["--api-key", KEY, "--api-key", hashed, "--admin-token", TOKEN]
    options += ["--cors-allow-origin", ORIGIN, "--allowed-host", "llm.example"]
    options += ["--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem")]
    options += ["--kserve-grpc-port", str(free_port())]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "first.pem"))
        with SecureServer(folder / "log", options) as server:
            yield server


def ask(server: Server, **headers: str) -> httpx.Response:
    body = {"model": "brook", "prompt": "Once", "max_tokens": 2}
    return httpx.post(f"{server.url}/v1/completions", json=body, headers=headers)


def test_keys_open_the_api_and_are_not_logged(server: Server) -> None:
    assert ask(server).status_code == 401
    assert ask(server, authorization=f"Bearer {TOKEN}").json()["error"]["code"] == "invalid_api_key"
    reply = ask(server, authorization=f"Bearer {KEY}", **{"x-request-id": "my-id"})
    assert reply.status_code == 200
    assert reply.headers["x-request-id"] == "my-id"
    assert ask(server, **{"x-api-key": SECOND}).status_code == 200
    assert httpx.get(f"{server.url}/metrics").status_code == 200
    said = server.output()
    assert not any(secret in said for secret in (KEY, SECOND, TOKEN))


def test_hosts_and_origins(server: Server) -> None:
    key = {"authorization": f"Bearer {KEY}"}
    assert ask(server, host="llm.example", **key).status_code == 200
    refused = ask(server, host=f"evil.example:{server.port}", **key)
    assert refused.status_code == 403
    assert "--allowed-host evil.example" in refused.json()["error"]["message"]
    for origin, allowed in [(ORIGIN, ORIGIN), ("https://evil.example", None)]:
        asked = {"access-control-request-method": "POST", "access-control-request-headers": "x-a"}
        reply = httpx.options(f"{server.url}/v1/completions", headers={"origin": origin, **asked})
        assert reply.headers.get("access-control-allow-origin") == allowed


def test_grpc_needs_the_key_too(server: Server) -> None:
    port = server.options[-1]
    root = (CERTIFICATES / "first.pem").read_bytes()
    with grpc.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(root)) as channel:

        def call(method: str, *metadata: tuple[str, str]) -> bytes:
            path = f"/inference.GRPCInferenceService/{method}"
            answer = channel.unary_unary(path)(b"", metadata=metadata, timeout=30)
            assert isinstance(answer, bytes)
            return answer

        assert call("ServerLive")
        with pytest.raises(grpc.RpcError) as refused:
            call("ServerMetadata")
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert b"penstock" in call("ServerMetadata", ("authorization", f"Bearer {KEY}"))


def served_certificate(server: Server) -> str:
    return ssl.get_server_certificate(("localhost", server.port)).strip()


def test_certificates_are_read_again(server: Server, folder: Path) -> None:
    pems = {
        name: (CERTIFICATES / f"{name}.pem").read_text().strip() for name in ("first", "second")
    }
    assert served_certificate(server) == pems["first"]
    reload = f"{server.url}/admin/reload"
    assert httpx.post(reload, headers={"authorization": f"Bearer {KEY}"}).status_code == 401
    admin = {"authorization": f"Bearer {TOKEN}"}
    shutil.copy(CERTIFICATES / "second.pem", folder / "cert.pem")
    assert httpx.post(reload, headers=admin).status_code == 422  # the key is the first one's
    shutil.copy(CERTIFICATES / "second.key", folder / "key.pem")
    assert httpx.post(reload, headers=admin).status_code == 200
    assert served_certificate(server) == pems["second"]
    for kind in ("pem", "key"):
        name = "cert.pem" if kind == "pem" else "key.pem"
        shutil.copy(CERTIFICATES / f"first.{kind}", folder / name)
    server.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 30
    while served_certificate(server) != pems["first"]:
        assert time.monotonic() < deadline, server.output()
        time.sleep(0.05)


def test_only_the_user_can_connect_to_the_workers(server: Server) -> None:
    sockets = worker_sockets(server.process.pid)
    assert sockets
    for path in sockets.values():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

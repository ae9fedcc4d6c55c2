"""Fixtures shared by the tests that cross a boundary."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
# Each httpx client reads all CA certificates, for 40 ms, and tests make thousands of them without
# TLS. A folder of certificates is read when one is looked for; this one has none.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)

from serving import Server, free_port


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The model that ships, on the CPU, one server for the whole session."""
    log = tmp_path_factory.mktemp("server") / "serve.log"
    with Server(log, ["--kserve-grpc-port", str(free_port())]) as running:
        yield running

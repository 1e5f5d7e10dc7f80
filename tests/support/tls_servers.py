"""A redis-server that speaks TLS, with a certificate made for it; tests are skipped, and say why, where there can be none."""

from __future__ import annotations

import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.redis_servers import RedisServer, RedisServers


@dataclass(frozen=True)
class Certificate:
    """For localhost; it signs itself."""

    path: Path
    key: Path


def make_certificate(folder: Path) -> Certificate:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    made = Certificate(folder / "cert.pem", folder / "key.pem")
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
            "-keyout", str(made.key), "-out", str(made.path), "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost",
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    return made


def start_tls_server(servers: RedisServers, certificate: Certificate) -> tuple[RedisServer, int]:
    """A server, and its port for TLS on localhost."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    try:
        server = servers.start(
            tls_port=str(port), tls_cert_file=str(certificate.path), tls_key_file=str(certificate.key),
            tls_ca_cert_file=str(certificate.path), tls_auth_clients="no",
        )  # fmt: skip
    except AssertionError as error:
        if "tls" not in str(error).lower():
            raise
        pytest.skip("this redis-server was built without TLS")
    return server, port

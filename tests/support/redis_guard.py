"""What guards a test's redis-server: TLS with certificates made for the test, users with passwords."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

ADMIN_PASSWORD = "of-the-tests"


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files of one authority and of a certificate for 127.0.0.1 and localhost that it signed."""

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def make(cls, directory: Path) -> Certificates:
        """New ones, by the openssl of this machine; the test is skipped where there is none."""
        openssl = shutil.which("openssl")
        if openssl is None:
            pytest.skip("certificates for tests are made by openssl, which is not on PATH")
        directory.mkdir(parents=True, exist_ok=True)
        made = cls(directory / "ca.crt", directory / "server.crt", directory / "server.key")
        names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
        new = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        for command in (
            [*new, "-days", "2", "-subj", "/CN=tests", "-keyout", str(directory / "ca.key"), "-out", str(made.authority)],
            [
                *new, "-days", "2", "-subj", "/CN=localhost", "-addext", names, "-addext", "basicConstraints=CA:FALSE",
                "-CA", str(made.authority), "-CAkey", str(directory / "ca.key"),
                "-keyout", str(made.key), "-out", str(made.certificate),
            ],
        ):  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        return made


@dataclass(frozen=True, slots=True)
class Guard:
    """How clients reach a server: over TLS if there are certificates, as `user` with `password` if there is a user.

    `may`: what the user's rule allows besides, as ACL SETUSER has it. The tests' own client is "default" with ADMIN_PASSWORD.
    """

    certificates: Certificates | None = None
    user: str | None = None
    password: str = "secret/with:odd@signs"
    may: str = "~* &* +@all"

    @property
    def admin_password(self) -> str | None:
        return None if self.user is None else ADMIN_PASSWORD

    def options(self, directory: Path, port: int) -> dict[str, str]:
        """What a server in this directory is started with for it."""
        options: dict[str, str] = {}
        if self.user is not None:
            users = directory / "users.acl"
            users.write_text(
                f"user default on #{_sha256(ADMIN_PASSWORD)} ~* &* +@all\n"
                f"user {self.user} on #{_sha256(self.password)} {self.may}\n"
            )
            options |= {"aclfile": str(users), "masterauth": ADMIN_PASSWORD}
        if self.certificates is not None:
            options |= {
                "port": "0", "tls-port": str(port), "tls-replication": "yes", "tls-auth-clients": "no",
                "tls-ca-cert-file": str(self.certificates.authority),
                "tls-cert-file": str(self.certificates.certificate),
                "tls-key-file": str(self.certificates.key),
            }  # fmt: skip
        return options

    def url(self, hosts: str, *, kind: str = "") -> str:
        """The URL of servers on these hosts; `kind`: what stands after redis in its scheme, "+cluster"."""
        who = "" if self.user is None else f"{quote(self.user, safe='')}:{quote(self.password, safe='')}@"
        if self.certificates is None:
            return f"redis{kind}://{who}{hosts}"
        return f"rediss{kind}://{who}{hosts}?ssl_ca_certs={quote(str(self.certificates.authority))}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

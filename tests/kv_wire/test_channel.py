"""Addresses, options, and what generated code must not do to our packages."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kv_types import limits
from kv_types.errors import InvalidArgumentError
from kv_wire import generate
from kv_wire.channel import SERVICE, channel_options, check_address, server_options
from kv_wire.gen import cache_pb2
from tests.support.daemon import ROOT


@pytest.mark.parametrize(
    "address", ["unix:/run/x/grpc.sock", "10.0.0.7:7420", "[::1]:7420", "node-7.cluster:1"]
)
def test_good_addresses_pass(address: str) -> None:
    assert check_address(address) == address


@pytest.mark.parametrize(
    "address",
    [
        "",
        "unix:",
        "unix:/" + "x" * 200,
        "host",
        "host:",
        ":80",
        "host:99999",
        "http://host:80",
        "a b:80",
        "host:8o",
    ],
)
def test_bad_addresses_are_refused_with_a_reason(address: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"path|host:port"):
        check_address(address)


def test_messages_are_bounded_on_both_sides_and_ports_are_not_shared() -> None:
    for options in (dict(channel_options()), dict(server_options())):
        assert options["grpc.max_receive_message_length"] == limits.GRPC_MESSAGE_BYTES_MAX
    assert dict(server_options())["grpc.so_reuseport"] == 0
    assert dict(channel_options())["grpc.enable_http_proxy"] == 0


def test_generated_code_is_current() -> None:
    assert generate.main(["--check"]) == 0


def test_generated_code_is_ours_and_does_not_shadow_the_stratakv_package() -> None:
    assert cache_pb2.DESCRIPTOR.services_by_name["Cache"].full_name == SERVICE
    script = (
        "import kv_wire.gen.cache_pb2_grpc, stratakv, sys;"
        "assert stratakv.__version__, 'our package';"
        "assert 'stratakv.v1' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=60)


def test_a_stale_file_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = generate.generate()
    changed = {**real, "cache_pb2.py": real["cache_pb2.py"] + "\n# another proto\n"}
    monkeypatch.setattr(generate, "generate", lambda: changed)
    assert generate.main(["--check"]) == 1
    assert "cache_pb2.py" in capsys.readouterr().err


def test_the_allocator_is_told_where_there_is_glibc() -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("glibc only")
    script = (
        "from kv_wire.allocator import keep_freed_memory, teach_large_messages;"
        "assert keep_freed_memory() and teach_large_messages()"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=60)

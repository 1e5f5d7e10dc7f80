"""Endpoints: what users may write, and errors that show what they should have written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inference_worker.endpoint import parse_endpoint
from inference_worker.settings import ClientSettings
from kv_types.errors import ConfigError


@pytest.mark.parametrize("text", ["/run/kv", "unix:/run/kv", Path("/run/kv")])
def test_runtime_directories(text: str | Path) -> None:
    endpoint = parse_endpoint(text, {})
    assert endpoint.attach_path == Path("/run/kv/attach.sock")
    assert endpoint.grpc_target == "unix:/run/kv/grpc.sock"


@pytest.mark.parametrize("text", ["localhost:7420", "10.0.0.7:1", "[::1]:65535", "kv-1.cluster.local:80"])
def test_remote_addresses(text: str) -> None:
    endpoint = parse_endpoint(text, {})
    assert endpoint.attach_path is None
    assert endpoint.grpc_target == text


@pytest.mark.parametrize(
    ("environment", "directory"),
    [
        ({"STRATAKV_ENDPOINT": "/a/b"}, "/a/b"),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, "/run/user/7/stratakv"),
        ({}, f"/tmp/stratakv-{os.getuid()}"),
        ({"STRATAKV_ENDPOINT": "/a", "XDG_RUNTIME_DIR": "/b"}, "/a"),
        ({"STRATAKV_RUNTIME_DIR": "/c", "XDG_RUNTIME_DIR": "/b"}, "/c"),
        ({"STRATAKV_RUNTIME_DIR": "/c", "STRATAKV_ENDPOINT": "/a"}, "/a"),
        ({"STRATAKV_RUNTIME_DIR": "/c", "STRATAKV_ENDPOINT": ""}, "/c"),
        ({"STRATAKV_RUNTIME_DIR": "", "XDG_RUNTIME_DIR": "/b"}, "/b/stratakv"),
        ({"STRATAKV_RUNTIME_DIR": "run"}, f"{Path.cwd()}/run"),
    ],
)
def test_nothing_said_takes_the_environment_then_the_default(
    environment: dict[str, str], directory: str
) -> None:
    assert parse_endpoint(None, environment).runtime_dir == Path(directory)


def test_relative_directories_become_absolute() -> None:
    assert parse_endpoint("./run", {}).runtime_dir == Path.cwd() / "run"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kv",
        "localhost",
        "localhost:",
        "localhost:0",
        "localhost:65536",
        "localhost:80\n",
        "localhost:\u0664\u0663",
        "a b:1",
        ":7420",
        "http://h:1",
        "unix:",
        "h:1:2",
        "~no-such-user/run",
    ],
)
def test_bad_text_shows_examples(text: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        parse_endpoint(text, {})


def test_a_path_too_long_for_a_socket_says_how_long_it_may_be() -> None:
    with pytest.raises(ConfigError, match="at most 107"):
        parse_endpoint("/" + "x" * 100, {})


def test_a_name_that_is_too_long() -> None:
    with pytest.raises(ConfigError, match="name"):
        ClientSettings(name="n" * 65)

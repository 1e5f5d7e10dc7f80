"""Tenants' shares and the quota of pins as settings: every way to write them, and the way back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_types.errors import ConfigError
from sidecar.arena_room import base_config
from sidecar.config_sources import load_settings
from sidecar.tenant_shares import format_shares, parse_shares

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(st.dictionaries(NAMES, st.floats(0.001, 0.1), max_size=8))
def test_shares_are_read_as_they_are_written(shares: dict[str, float]) -> None:
    assert parse_shares(format_shares(shares)) == shares


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("a=0.3", {"a": 0.3}), (" a = 0.3 , b = 1e-1 ", {"a": 0.3, "b": 0.1}), ("none", {}), ("", {}),
        ('{"a,b=c": 0.5}', {"a,b=c": 0.5}), ("x=y=0.5", {"x=y": 0.5}),
    ],
)  # fmt: skip
def test_text_is_read(text: str, shares: dict[str, float]) -> None:
    assert parse_shares(text) == shares


@pytest.mark.parametrize(
    "text",
    [
        "a", "a=", "=0.3", "a=x", "a=nan", "a=inf", "a=0", "a=-1", "a=1.1", "a=0.6,b=0.6", "a=0.1,a=0.2", "{", '{"a": true}',
        '{"a": "1"}',
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"share|JSON|tenant"):
        parse_shares(text)


def test_they_come_from_flags_environment_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "sidecar.toml"
    file.write_text('pin_quota = 0.5\n[tenant_shares]\n"tenant a" = 0.3\nb = 0.1\n')
    settings = load_settings({}, config_file=file).settings
    assert settings.tenant_shares == {"tenant a": 0.3, "b": 0.1}
    assert base_config(settings).tenant_shares == settings.tenant_shares
    assert base_config(settings).pin_quota == 0.5
    monkeypatch.setenv("STRATAKV_TENANT_SHARES", "c=0.2")
    loaded = load_settings({}, config_file=file)
    assert (loaded.settings.tenant_shares, loaded.sources["tenant_shares"]) == (
        {"c": 0.2},
        "STRATAKV_TENANT_SHARES",
    )
    assert load_settings({"tenant_shares": "d=1"}).settings.tenant_shares == {"d": 1.0}


def test_an_error_names_the_setting_and_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"tenant_shares = 'a' \(from --tenant-shares\).*tenant-a=0.3"):
        load_settings({"tenant_shares": "a"})
    with pytest.raises(ConfigError, match="pin_quota"):
        load_settings({"pin_quota": "1.5"})

"""stratakv pin, pins and unpin: what they pin, in which namespaces, what they print, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kv_types.ids import PageKey, Stamp
from kv_types.outcomes import MissReason
from kv_types.page_keys import page_keys, unpack_keys
from sidecar.admin.pins import PinAdministration
from sidecar.l3.loads import RowLoaded
from sidecar.pin_file import PIN_FILE, read_pins
from tests.stratakv.conftest import SPACES, Command
from tests.support.admin_site import AdminSite
from tests.support.daemon import ROOT, start_command
from tests.support.node import PINNED_MAX
from tests.support.polling import wait_until

TOKENS = list(range(10))
NO_STAMP = Stamp(SPACES[0].id[:16], 0)  # type: ignore[arg-type]


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    file = tmp_path / "tokens"
    file.write_text(json.dumps(TOKENS))
    return str(file)


def keys_in(space: int) -> list[PageKey]:
    return unpack_keys(page_keys(SPACES[space].id, TOKENS, page_tokens=SPACES[space].page_tokens))


def test_a_prefix_is_pinned_in_every_namespace_that_matches(
    site: AdminSite, stratakv: Command, prefix: str
) -> None:
    site.store.pinned.resident = {bytes(keys_in(0)[0])}
    told = stratakv.json("pin", "--prefix-tokens", prefix, "--model", "m", "--for", "2h", "--name", "prompt")
    assert 0 < told.pop("remaining_ms") <= 7_200_000
    assert told == {"name": "prompt", "chains": 2, "pages": 4, "held_pages": 1, "held_bytes": 1000}
    assert set(site.store.pinned.named) == {*keys_in(0), *keys_in(1)}
    (kept,) = read_pins(site.runtime_dir / PIN_FILE)
    assert (kept.name, kept.pages) == ("prompt", 4)


def test_pins_are_listed_and_ended(site: AdminSite, stratakv: Command, prefix: str) -> None:
    words = ("--prefix-tokens", prefix, "--tenant", "alice")
    result = stratakv("pin", *words, "--for", "90s")
    assert result.exit_code == 0, result.stderr
    name = f"pin-{keys_in(1)[-1].hex()[:12]}"
    assert f"pinned {name}: 0 of 2 pages are here" in result.stdout
    listed = stratakv.json("pins")
    assert [one["name"] for one in listed["pins"]] == [name]
    assert (listed["charged_bytes"], listed["quota_bytes"]) == (2 * 4096, PINNED_MAX * 4096)
    shown = stratakv("pins").stdout
    assert name in shown
    assert "8KiB of a quota of 32KiB" in shown
    assert stratakv("unpin", name).stdout == f"unpinned {name}\n"
    assert stratakv.json("pins")["pins"] == []
    assert not (site.runtime_dir / PIN_FILE).exists()
    assert not +site.store.pinned.named


def test_one_page_is_pinned_with_what_it_stands_on(site: AdminSite, stratakv: Command) -> None:
    first, second = keys_in(0)
    site.store.add(SPACES[0], first, None, NO_STAMP)
    site.store.add(SPACES[0], second, first, NO_STAMP)
    told = stratakv.json("pin", "--key", second.hex(), "--for", "1m", "--name", "page")
    assert (told["pages"], told["chains"]) == (2, 1)
    assert set(site.store.pinned.named) == {first, second}


def test_what_the_node_lacks_is_loaded_before_it_answers(
    site: AdminSite, stratakv: Command, prefix: str
) -> None:
    site.loads.is_available = True
    process = start_command(
        "pin", "--prefix-tokens", prefix, "--tenant", "alice", "--for", "1h", "--json", "--runtime-dir",
        str(site.runtime_dir),
    )  # fmt: skip
    wait_until(lambda: bool(site.loads.begun), what="the load")
    (load,) = site.loads.begun
    assert [row.keys for row in load.rows] == [b"".join(keys_in(1))]
    site.store.pinned.resident = set(map(bytes, keys_in(1)))

    async def finish() -> None:
        load.finish(RowLoaded(2, 0, MissReason.NONE))

    site.call(finish)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert json.loads(output)["held_pages"] == 2
    stratakv("pin", "--prefix-tokens", prefix, "--tenant", "alice", "--for", "1h", "--no-load")
    assert len(site.loads.begun) == 1


def test_a_sidecar_takes_up_the_pins_of_the_one_before(
    site: AdminSite, stratakv: Command, prefix: str
) -> None:
    stratakv("pin", "--prefix-tokens", prefix, "--tenant", "alice", "--for", "1h", "--name", "kept")

    async def restore() -> None:
        site.store.pins.end("kept")
        again = PinAdministration(site.store, site.loads, clock=site.clock, file=site.runtime_dir / PIN_FILE)
        await again.restore()

    site.call(restore)
    assert [one["name"] for one in stratakv.json("pins")["pins"]] == ["kept"]


@pytest.mark.parametrize("kept", [b"damaged", b""], ids=["damaged", "empty"])
def test_a_file_that_cannot_be_read_is_no_reason_not_to_start(
    site: AdminSite, stratakv: Command, kept: bytes
) -> None:
    (site.runtime_dir / PIN_FILE).write_bytes(kept)
    site.call(site.pins.restore)
    assert stratakv.json("pins")["pins"] == []


def test_what_cannot_be_pinned_is_refused_and_says_why(
    site: AdminSite, stratakv: Command, prefix: str
) -> None:
    by_prefix = ("pin", "--prefix-tokens", prefix)
    for words, reason in (
        ((*by_prefix, "--tenant", "alice", "--for", "31d"), "--for is 1s to 30d; got 31d"),
        ((*by_prefix, "--for", "1h"), "fill no page"),
        ((*by_prefix, "--model", "nobody's", "--for", "1h"), "no namespace"),
        ((*by_prefix, "--key", "0" * 64, "--for", "1h"), "or one page by --key"),
        (("pin", "--for", "1h"), "or one page by --key"),
        (("pin", "--key", "0" * 64, "--model", "m", "--for", "1h"), "no other option"),
        (("pin", "--key", "0" * 64, "--for", "1h"), "no page 0000"),
        ((*by_prefix, "--model", "m", "--for", "1h", "--name", "a\x1bb"), "name"),
        (("unpin", "nobody"), "no pin is called 'nobody'"),
    ):
        result = stratakv(*words)
        assert result.exit_code == 2, (words, result.stderr)
        assert reason in result.stderr
    assert not +site.store.pinned.named


def test_a_pin_beyond_the_quota_is_refused_with_the_numbers(
    site: AdminSite, stratakv: Command, tmp_path: Path
) -> None:
    file = tmp_path / "long"
    file.write_text(json.dumps(list(range(4 * (PINNED_MAX + 1)))))
    result = stratakv("pin", "--prefix-tokens", str(file), "--tenant", "alice", "--for", "1h", "--name", "p")
    assert result.exit_code == 2
    assert "takes 36864 bytes more and 0 of the quota of 32768 are taken" in result.stderr
    assert stratakv.json("pins")["pins"] == []


def test_every_key_of_the_json_is_documented(site: AdminSite, stratakv: Command, prefix: str) -> None:
    page = (ROOT / "docs" / "pins-and-shares.md").read_text(encoding="utf-8")
    pinned = stratakv.json("pin", "--prefix-tokens", prefix, "--tenant", "alice", "--for", "1h")
    for key in (*pinned, *stratakv.json("pins")):
        assert f"`{key}`" in page, key

"""`stratakv simulate`: what it shows and writes, for every form of trace, and what it says of a wrong one."""

from __future__ import annotations

import gzip
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import zstandard
from typer.testing import CliRunner, Result

from kv_policy.replays import POLICIES, replay_named
from kv_types.errors import ConfigError
from stratakv.charts import terminal_chart
from stratakv.cli import app
from stratakv.sizing import ENOUGH, Curves, PageBytes, advise, capacities
from tests.support.daemon import run_command
from tests.support.traces import capacity_of, line_of, public_trace, trace_file, trace_of

TAU = str(trace_file("taubench_c64"))


def run(*words: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["simulate", *words], input=stdin, env={"COLUMNS": "250"})


def told(*words: str, stdin: bytes | None = None) -> Any:
    """What it writes as JSON."""
    result = run(*words, "--json", "-", stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A trace of eight requests that come back in turns."""
    path = tmp_path / "turns.jsonl"
    chains = [[1, 2], [3, 4], [1, 2, 5], [3, 4, 6], [1, 2, 5, 7], [8], [3, 4, 6, 9], [1, 2]]
    path.write_bytes(b"".join(line_of(chain, at_ms=1000 * at) for at, chain in enumerate(chains)))
    return path


def test_it_shows_figures_a_chart_and_how_much_is_enough() -> None:
    result = run(TAU, "--bytes-per-token", "1024")
    assert result.exit_code == 0, result.stderr
    assert "reading" in result.stderr
    for part in (
        "taubench_c64: 278 requests", "1,133 pages of 64 tokens, 179 of them different", "hits 84.2 %", "80.14", "82.26",
        "gap closed", "┃", "L learned, r lru, 2 lru2, 3 s3fifo, B belady", "90 % of what can be hit needs about",
        "GiB) with learned", "of the gap between LRU and Belady",
    ):  # fmt: skip
        assert part in result.stdout, part


def test_its_json_has_every_figure() -> None:
    (one,) = told(TAU)["traces"]
    trace = public_trace("taubench_c64")
    assert set(one) == {
        "name", "requests", "requested_pages", "distinct_pages", "span_s", "page_tokens", "page_bytes",
        "achievable_ratio", "capacities", "policies", "advice",
    }  # fmt: skip
    assert (one["name"], one["requests"], one["distinct_pages"]) == ("taubench_c64", 278, 179)
    assert (one["page_tokens"], one["page_bytes"]) == (64, None)
    assert one["capacities"] == [capacity_of(trace, share) for share in (1, 2, 5, 10, 20, 50)]
    assert list(one["policies"]) == list(POLICIES)
    for policy, figures in one["policies"].items():
        hits = [replay_named(policy, trace, pages).hit for pages in one["capacities"]]
        assert figures["hit_pages"] == hits
        assert figures["ratio"] == [hit / len(trace.blocks) for hit in hits]
    closed = one["policies"]["belady"]["gap_closed"]
    assert closed == [1.0, 1.0, 1.0, 1.0, None, None], "there is no gap where LRU hits all"


def test_the_advice_is_the_least_that_is_enough() -> None:
    trace = public_trace("taubench_c64")
    for policy in ("lru", "learned"):
        (one,) = told(TAU, "--policy", policy, "--page-bytes", "2MiB")["traces"]
        advice = one["advice"]
        assert (advice["policy"], advice["share_of_achievable"]) == (policy, ENOUGH)
        assert advice["bytes"] == advice["pages"] * 2 * 2**20
        assert (
            replay_named(policy, trace, advice["pages"]).hit == advice["hit_pages"] >= ENOUGH * trace.reused
        )
        assert replay_named(policy, trace, advice["pages"] - 1).hit < ENOUGH * trace.reused


def test_advice_needs_few_replays_and_knows_what_was_replayed() -> None:
    trace = public_trace("miniswe_c64")
    asked: list[int] = []

    def replayed(policy: str, pages: int) -> Any:
        asked.append(pages)
        return replay_named(policy, trace, pages)

    known = {pages: replay_named("lru", trace, pages) for pages in (29, 594, 1486)}
    advice = advise(trace, "lru", known, replayed)
    assert advice.pages is not None
    assert 29 < advice.pages < 594
    assert len(asked) <= 12
    assert all(29 < pages < 594 for pages in asked)
    nothing = trace_of([[1], [2]])
    assert advise(nothing, "lru", {}, replayed).pages is None


def test_several_traces_are_shown_one_by_one_or_merged(plain: Path) -> None:
    other = plain.with_name("other.jsonl")
    other.write_bytes(line_of([1, 2, 5], at_ms=1500))
    apart = told(str(plain), str(other), "--policy", "lru", "--capacity", "3")["traces"]
    assert [(one["name"], one["requests"]) for one in apart] == [("turns", 8), ("other", 1)]
    (merged,) = told(str(plain), str(other), "--policy", "lru", "--capacity", "100%", "--merge")["traces"]
    assert (merged["name"], merged["requests"], merged["distinct_pages"]) == ("turns + other", 9, 9)
    assert merged["policies"]["lru"]["hit_pages"] == [15]


@pytest.mark.parametrize("pack", ["gz", "zst"])
def test_packed_files_and_standard_input_are_read_as_plain_ones(plain: Path, pack: str) -> None:
    data = plain.read_bytes()
    packed = gzip.compress(data) if pack == "gz" else zstandard.ZstdCompressor().compress(data)
    path = plain.with_name("turns.jsonl." + pack)
    path.write_bytes(packed)
    expected = told(str(plain))
    assert told(str(path)) == expected
    piped = told("-", stdin=packed)
    assert piped["traces"][0].pop("name") == "standard input"
    assert expected["traces"][0].pop("name") == "turns"
    assert piped == expected


@pytest.mark.parametrize("pack", ["gz", "zst"])
def test_a_packed_file_that_is_cut_or_damaged_is_named(plain: Path, pack: str) -> None:
    data = plain.read_bytes() * 50
    packed = (
        gzip.compress(data) if pack == "gz" else zstandard.ZstdCompressor(write_checksum=True).compress(data)
    )
    path = plain.with_name("broken." + pack)
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 0x55
    for broken in (packed[: len(packed) // 2], bytes(damaged)):
        path.write_bytes(broken)
        result = run(str(path))
        assert (result.exit_code, result.stdout) == (2, "")
        assert str(path) in result.stderr


def test_a_wrong_line_ends_it_and_is_named(plain: Path) -> None:
    with plain.open("ab") as file:
        file.write(b'{"timestamp": 9}\n')
    result = run(
        str(plain), "--plot", str(plain.with_suffix(".png")), "--json", str(plain.with_suffix(".json"))
    )
    assert result.exit_code == 2
    assert f"{plain}, line 9: input_length is missing" in result.stderr
    assert {path.name for path in plain.parent.iterdir()} == {plain.name}, (
        "nothing is written of a wrong trace"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("no/such.jsonl",), "can't be read: No such file"),
        ((".",), "can't be read: Is a directory"),
        ((TAU, "--policy", "arc"), "'arc' is no policy"),
        ((TAU, "--capacity", "much"), "write a share of the trace's pages (5%), pages (5000) or a size (64GiB)"),
        ((TAU, "--capacity", "0%"), "no part of a trace's pages"),
        ((TAU, "--capacity", "101%"), "no part of a trace's pages"),
        ((TAU, "--capacity", "0"), "a cache has 1 to"),
        ((TAU, "--capacity", "9" * 5000), "no capacity"),
        ((TAU, "--capacity", "1%,,2%"), "'' is no capacity"),
        ((TAU, "--capacity", "64GiB"), "say how large a page is"),
        ((TAU, "--capacity", "1KiB", "--page-bytes", "1MiB"), "1KiB is 0 pages"),
        ((TAU, "--page-bytes", "1TiB"), "--page-bytes: a page has"),
        ((TAU, "--page-bytes", "big"), "--page-bytes: 'big' is not a size"),
        ((TAU, "--json", "/no/such/dir/file"), "can't be written"),
        ((TAU, "--plot", "/no/such/dir/file.png"), "can't be written"),
        ((TAU, "--plot", "picture.txt"), "can't be written"),
    ],
    ids=lambda value: (value if isinstance(value, str) else " ".join(value[1:]) or value[0])[:60],
)  # fmt: skip
def test_what_is_wrong_is_said_and_is_a_usage_error(words: tuple[str, ...], said: str) -> None:
    result = run(*words)
    assert result.exit_code == 2, result.stdout
    assert said in result.stderr
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_capacities_are_shares_pages_or_sizes() -> None:
    trace = public_trace("taubench_c64")
    sizes = PageBytes(bytes_per_token=1024)
    assert capacities("50%, 10 pages,1 page,7,640KiB,10", trace, sizes) == [1, 7, 10, 89]
    assert capacities("0.001%", trace, sizes) == [1]
    with pytest.raises(ConfigError, match="and --page-tokens"):
        capacities("1GiB", trace_of([[1]]), PageBytes(bytes_per_token=1024))
    assert capacities("1MiB", trace_of([[1]]), PageBytes(bytes_per_token=1024, page_tokens=256)) == [4]


def test_processes_change_no_figure() -> None:
    """A run of several processes, as a user starts it, says what one process says."""
    words = ["simulate", str(trace_file("miniswe_c64")), "--policy", "lru,learned", "--json", "-"]
    alone, many = run_command(*words, "--jobs", "1"), run_command(*words, "--jobs", "2", timeout_s=120)
    assert (alone.returncode, many.returncode) == (0, 0), many.stderr
    assert alone.stdout == many.stdout


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "curves.svg"
    assert run(TAU, str(trace_file("miniswe_c64")), "--policy", "lru", "--plot", str(picture)).exit_code == 0
    drawn = picture.read_text()
    assert drawn.count("prefix-hit ratio") >= 2


def test_without_matplotlib_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run(TAU, "--policy", "lru", "--plot", str(tmp_path / "a.png"))
    assert result.exit_code == 2
    assert "pip install 'stratakv[plot]'" in result.stderr
    assert run(TAU, "--policy", "lru").exit_code == 0


def test_a_trace_where_nothing_comes_again_has_no_advice(tmp_path: Path) -> None:
    path = tmp_path / "once.jsonl"
    path.write_bytes(line_of([1, 2]) + line_of([], tokens=3))
    result = run(str(path))
    assert result.exit_code == 0, result.stderr
    assert "no cache of any size would hit" in result.stdout
    assert told(str(path))["traces"][0]["advice"] is None
    path.write_bytes(line_of([], tokens=3))
    assert run(str(path)).exit_code == 0


@pytest.mark.parametrize("width", [1, 40, 200])
def test_a_chart_fits_its_terminal_and_has_every_curve(width: int) -> None:
    trace = public_trace("taubench_c64")
    pages = [1, 17, 89]
    points = {policy: [replay_named(policy, trace, one) for one in pages] for policy in ("lru", "belady")}
    lines = terminal_chart(Curves(trace, pages, points), width=width)
    assert max(map(len, lines)) <= max(width, 40) + 1
    drawn = "\n".join(lines[:-1])
    assert "r" in drawn
    assert "B" in drawn
    assert lines[-1].strip() == "r lru, B belady"
    assert " 84.2 %" in lines[0]


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_a_full_disk_leaves_the_result_of_before(narrow: Path, plain: Path, option: str) -> None:
    result = narrow / ("of_before.json" if option == "--json" else "of_before.png")
    result.write_bytes(b"of before")
    free = os.statvfs(narrow).f_bavail * os.statvfs(narrow).f_frsize
    (narrow / "filling").write_bytes(bytes(free - (0 if option == "--json" else 4096)))
    ended = run(str(plain), option, str(result))
    assert ended.exit_code == 2
    assert f"{option}: {result} can't be written: No space left on device" in ended.stderr
    assert result.read_bytes() == b"of before"
    assert {one.name for one in narrow.iterdir()} == {result.name, "filling"}


@pytest.mark.parametrize(
    "words",
    [("--json", "/no/such/dir/file"), ("--plot", "/no/such/dir/a.png"), ("--plot", "a.txt"), ("--json", ".")],
)
def test_what_could_not_be_written_is_said_before_anything_is_read(words: tuple[str, str]) -> None:
    ended = run("no/such/trace.jsonl", *words)
    assert ended.exit_code == 2
    assert "can't be written" in ended.stderr
    assert "reading" not in ended.stderr


def test_a_result_keeps_its_mode_and_its_link_and_goes_into_pipes(tmp_path: Path, plain: Path) -> None:
    real, link, pipe = tmp_path / "real.json", tmp_path / "link.json", tmp_path / "pipe"
    real.write_bytes(b"")
    real.chmod(0o640)
    link.symlink_to(real)
    os.mkfifo(pipe)
    assert run(str(plain), "--json", str(link)).exit_code == 0
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(pipe.read_bytes)
        assert run(str(plain), "--json", str(pipe)).exit_code == 0
        assert heard.result(30) == real.read_bytes()


def test_a_result_goes_to_standard_output_by_its_name_too(tmp_path: Path, plain: Path) -> None:
    words = ["simulate", str(plain), "--policy", "lru", "--json", "/dev/stdout"]
    assert '"gap_closed"' in run_command(*words).stdout

"""Reads the order of the shared-memory protocol's steps from the sources, so that the models can't drift from them.

A step is a landmark: a piece of text in the body of one function. Landmarks that aren't there are left out; a test
holds what is found in the sources as they are against what the models were written for.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]

_loaded = count()


@dataclass(frozen=True)
class Steps:
    """The orders that the models take, by the names that they know."""

    look: tuple[str, ...]
    """A look-up that pins (Reader::pin_once)."""
    copy: tuple[str, ...]
    """What a copy adds to it (Reader::copy_out)."""
    match: tuple[str, ...]
    """An entry read between two loads of its generation (read_entry)."""
    reuse: tuple[str, ...]
    """From hiding a page to giving its slot away."""
    orders: Mapping[str, str]
    """Memory orders of the loads and stores by which pages are found, published, pinned and let go."""
    publish: tuple[str, ...]
    """One event: the ring, the view."""
    read: tuple[str, ...]
    """One record of the ring, by a worker."""
    claim: tuple[str, ...]
    """Freshness that an engine claims for itself."""
    close: tuple[str, ...]
    """The header is closed."""
    goodbye: tuple[str, ...]
    """A sidecar leaves the fleet, its header being closed."""
    attach: tuple[str, ...]
    """A client attaches whose engine keeps its pages."""
    end: tuple[str, ...]
    """One ends."""
    grant: tuple[str, ...]
    """What must hold for freshness without limit."""
    sidecar: tuple[str, ...]
    """One batch of records, from the log's answer to the freshness that it grants."""


def read_steps(root: Path = ROOT) -> Steps:
    """Read all of them from the sources under `root`."""
    native = root / "cache_l2" / "native"
    publish = _publish(native)
    store = root / "cache_l2" / "store.py"
    return Steps(
        look=_look(native),
        copy=_steps(
            _cpp(native / "reader.cpp", "Reader::copy_out"),
            {"copy": r"copier\.copy\(", "fence": r"fence_acquire\(\)", "check": r"still_there\("},
        ),
        match=_steps(
            _cpp(native / "look_up.cpp", "read_entry"),
            {
                "load": r"out\.generation = entry\.generation\.load\(",
                "fields": r"key_equals\(",
                "fence": r"fence_acquire\(\)",
                "load again": r"generation\.load\([^)]*\) != out\.generation",
            },
        ),
        reuse=_reuse(native),
        orders=_orders(native),
        publish=publish,
        read=_steps(
            _cpp(native / "ring.hpp", "read_event"),
            {
                "tag": r"tag\.load\(std::memory_order_acquire\) != view",
                "body": r"payload\[i\]\.load\(",
                "tag again": r"tag\.load\(std::memory_order_relaxed\) != view",
            },
        ),
        claim=_steps(
            _cpp(native / "reader.cpp", "Reader::claim_freshness"),
            {
                "claim": r"own_freshness_ns\.store\(claimed",
                "fence": r"fence_seq_cst\(\)",
                "load view": r"view_number\(\)",
                "closed": r"if \(!closed\(\)\) return",
            },
        ),
        close=_steps(
            _cpp(native / "arena.cpp", "Arena::close_header"),
            {"close": r"closed\.store\(", "fence": r"fence_seq_cst\(\)"},
        ),
        goodbye=_steps(
            _python(root / "sidecar" / "log" / "shell.py", "leave"),
            {
                "look": r"if await self\._engines_serve_on\(\):",
                "tell": r"await self\._renew\(",
                "leave": r"self\._log\.leave\(",
            },
        ),
        attach=_steps(_python(store, "open_client"), {"take back": r"take_back_keep\(\)"}),
        end=_steps(_python(store, "end_client"), {"take back": r"take_back_keep\(\)"}),
        grant=_steps(
            _python(store, "grant_keep"),
            {
                "same clients": r"opened == self\._keep_opened",
                "some left": r"engines\(EngineMode\.KEEP\) > 0",
            },
        )
        + _steps(
            _python(root / "sidecar" / "log" / "shell.py", "_grant_keep"),
            {"confirmed": r"renewal\.confirmed and"},
        ),
        sidecar=_sidecar(root, publish),
    )


def _look(native: Path) -> tuple[str, ...]:
    source = native / "reader.cpp"
    look = _steps(
        _cpp(source, "Reader::pin_once"),
        {
            "load F": r"= freshness_ns\(\)",
            "load view": r"result\.view = view_number\(\)",
            "walk": r"walk_chain\(",
            "pin": r"publish_hazard\(",
            "clock": r"boottime_ns\(\)",
            "view again": r"view_number\(\) != result\.view",
        },
    )
    pin = _steps(
        _cpp(source, "Reader::publish_hazard"),
        {
            "again": r"(?s)for \(int attempt.*left = standing;",
            "store hazard": r"cover\.store\(cover_of\(",
            "fence": r"fence_seq_cst\(\)",
            "re-check": r"confirm\(",
            "narrow": r"\bnarrow\(",
        },
    )
    return _put_in(look, "pin", pin)


def _reuse(native: Path) -> tuple[str, ...]:
    hide = _steps(_cpp(native / "arena_hide.cpp", "Arena::hide_one"), {"hide": r"generation\.store\("})
    reclaim = _steps(
        _cpp(native / "arena_hide.cpp", "Arena::reclaim"),
        {"fence": r"fence_seq_cst\(\)", "scan": r"scan_leases\(\)", "free": r"free_entry\("},
    )
    walk = _steps(
        _cpp(native / "arena_scan.cpp", "Arena::scan_leases"),
        {"towards the root": r"entry = page_below\(entry\)"},
    )
    return hide + _put_in(reclaim, "scan", ("scan", *walk))


def _orders(native: Path) -> dict[str, str]:
    places = {
        "walk": ("look_up.cpp", "read_entry", r"out\.generation = entry\.generation\.load\("),
        "publish": ("arena_commit.cpp", "Arena::publish", r"shared\.generation\.store\("),
        "hide": ("arena_hide.cpp", "Arena::hide_one", r"generation\.store\("),
        "store hazard": ("reader.cpp", "Reader::publish_hazard", r"cover\.store\("),
        "narrow": ("reader.cpp", "Reader::narrow", r"cover\.store\("),
        "clear": ("reader.cpp", "Reader::unpin", r"cover\.store\("),
        "scan": ("arena_leases.hpp", "each_live_lease", r"cover\.load\("),
    }
    orders = {}
    for name, (file, function, start) in places.items():
        found = re.findall(rf"{start}.*std::memory_order_(\w+)\)", _cpp(native / file, function))
        if len(found) != 1:
            raise ValueError(f"{function} of {file} has {len(found)} places like {start}: which is {name!r}?")
        orders[name] = found[0]
    return orders


def _publish(native: Path) -> tuple[str, ...]:
    outer = _steps(
        _cpp(native / "arena.cpp", "Arena::publish_event"),
        {"ring": r"write_event\(", "view": r"header->view\.store\(", "fence": r"fence_seq_cst\(\)"},
    )
    ring = _steps(
        _cpp(native / "ring.hpp", "write_event"),
        {
            "tag 0": r"tag\.store\(0,",
            "body": r"payload\[i\]\.store\(",
            "tag": r"tag\.store\(event\.view,",
        },
    )
    return _put_in(outer, "ring", ring)


def _sidecar(root: Path, publish: Sequence[str]) -> tuple[str, ...]:
    """judge, hide, what `publish` does, acknowledge; and freshness where the follower grants it."""
    source = root / "sidecar" / "log" / "applier.py"
    acknowledge = r"\.acknowledged\.published\("
    each = _steps(_python(source, "_publish"), {"publish": r"_store\.publish\(", "acknowledge": acknowledge})
    batch = _steps(
        _python(source, "apply"),
        {
            "judge": r"_validity\.apply\(",
            "hide": r"self\._hide\(",
            "publish": r"self\._publish\(",
            "acknowledge": acknowledge,
        },
    )
    applied = _put_in(_put_in(batch, "publish", each), "publish", publish)
    before, after = _freshness(_module(root / "invalidation" / "follower.py"))
    return (*["freshness"] * before, *applied, *["freshness"] * after)


def _freshness(follower: ModuleType) -> tuple[bool, bool]:
    """Whether a follower that gets a record grants freshness before, and after, it is applied."""
    from invalidation.log import Boot, Renewal, RenewalStatus
    from invalidation.records import NO_DIGEST, LogEntry, read_record
    from kv_types.events import Selected
    from kv_types.ids import Stamp, new_log_incarnation
    from kv_types.selectors import EVERYTHING

    incarnation = new_log_incarnation()
    machine = follower.Follower(lease_ns=1000, settle_ns=2000)
    boot = Boot(Stamp(incarnation, 0), NO_DIGEST, {}, {}, {}, settled=True, replicas=0)
    machine.step(follower.Started(0))
    machine.step(follower.Booted(boot, 1))
    machine.step(follower.Applied(2))
    record = read_record(1, LogEntry(event=Selected(EVERYTHING)).encode(), NO_DIGEST)
    renewal = Renewal(RenewalStatus.OK, incarnation, 1, 1, (record,), confirmed=True, replicas=0)
    told = [type(action).__name__ for action in machine.step(follower.Renewed(renewal, 3, 4))]
    assert "Apply" in told, f"the follower was given a record and answered {told}"
    done = [type(action).__name__ for action in machine.step(follower.Applied(5))]
    return "PublishFreshness" in told, "PublishFreshness" in done


def _module(path: Path) -> ModuleType:
    """Load a source file under a name of its own."""
    name = f"shared_memory_steps_{next(_loaded)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look it up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def _steps(body: str, landmarks: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the landmarks that are there, in their order; raises ValueError when one is there twice."""
    found = []
    for name, pattern in landmarks.items():
        places = [match.start() for match in re.finditer(pattern, body)]
        if len(places) > 1:
            raise ValueError(f"{pattern} is there {len(places)} times: which one is {name!r}?")
        found += [(place, name) for place in places]
    return tuple(name for _, name in sorted(found))


def _put_in(outer: Sequence[str], name: str, inner: Sequence[str]) -> tuple[str, ...]:
    """What a call does, in its place."""
    return tuple(one for step in outer for one in (inner if step == name else (step,)))


def _cpp(path: Path, function: str) -> str:
    """Body of a C++ function that is defined at the left margin, without comments."""
    found = re.findall(
        rf"^[^\s/#][^\n;]*\b{re.escape(function)}\([^;{{]*\{{\n(.*?)^}}", path.read_text(), re.M | re.S
    )
    if len(found) != 1:
        raise ValueError(f"{path.name} defines {function} {len(found)} times")
    return re.sub(r"//[^\n]*", "", found[0])


def _python(path: Path, function: str) -> str:
    """Body of a Python method, without comments."""
    found = re.findall(
        rf"^    (?:async )?def {function}\(.*?(?=^    (?:async )?def |^    @|\Z)",
        path.read_text(),
        re.M | re.S,
    )
    if len(found) != 1:
        raise ValueError(f"{path.name} defines {function} {len(found)} times")
    return re.sub(r"#[^\n]*", "", found[0])

"""What the workers of a fleet have seen, written down as it happens and read back: one JSON object a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kv_types.outcomes import MissReason
from tests.fleet.accounts import Account
from tests.fleet.stamped import Part, Place, StampedPage


@dataclass(frozen=True, slots=True)
class LookUp:
    """One look-up: `pages` are those that it got, from the root on; `l1` of them from the worker's own memory.

    `reason` says why it ended where it did. Times are CLOCK_BOOTTIME ns. What is beyond L1 took `took_ns`, `waited_ns` of it
    without a CPU; `deadline_ns` was the time it was given, 0: it was not to wait for anything but memory.
    """

    worker: str
    sidecar: int
    invoked_ns: int
    answered_ns: int
    tenant: int
    chain: int
    wanted: int
    l1: int
    pages: tuple[StampedPage, ...]
    reason: MissReason
    deadline_ns: int = 0
    took_ns: int = 0
    waited_ns: int = 0

    @property
    def is_full(self) -> bool:
        return len(self.pages) == self.wanted


@dataclass(frozen=True, slots=True)
class Breach:
    """What a worker saw and must never see."""

    worker: str
    at_ns: int
    what: str


class Recorder:
    """Writes one worker's history, at most `bytes_max` of it; a line is whole or not there, whatever ends the process."""

    def __init__(self, path: Path, *, bytes_max: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._left = bytes_max
        self._numbers: dict[StampedPage, int] = {}

    @property
    def is_full(self) -> bool:
        return self._left <= 0

    def look_up(
        self,
        *,
        invoked_ns: int,
        answered_ns: int,
        tenant: int,
        chain: int,
        wanted: int,
        l1: int,
        pages: Iterable[StampedPage],
        reason: MissReason,
        deadline_ns: int = 0,
        took_ns: int = 0,
        waited_ns: int = 0,
    ) -> None:
        got = [self._number(page) for page in pages]
        told = [
            invoked_ns, answered_ns, tenant, chain, wanted, l1, int(reason), deadline_ns, took_ns, waited_ns,
        ]  # fmt: skip
        self._write({"look": told, "got": got})

    def account(self, account: Account) -> None:
        """What the worker counted itself, and what its client says, between two look-ups."""
        self._write({"account": account.told()})

    def breach(self, at_ns: int, what: str) -> None:
        self._write({"breach": [at_ns, what]})

    def _number(self, page: StampedPage) -> int:
        known = self._numbers.get(page)
        if known is not None:
            return known
        number = self._numbers[page] = len(self._numbers)
        place = page.place
        parts = [[part.index, part.producer, part.tag, part.begun_ns, part.ended_ns] for part in page.lineage]
        self._write({"page": number, "place": [place.tenant, place.chain, place.index], "lineage": parts})
        return number

    def _write(self, told: dict[str, Any]) -> None:
        line = json.dumps(told, separators=(",", ":")).encode() + b"\n"
        self._left -= len(line)
        if self._left > 0:
            os.write(self._file, line)


class HistoryFile:
    """One worker's file, read from where the last reading ended."""

    def __init__(self, path: Path, *, worker: str, sidecar: int) -> None:
        self._path = path
        self._worker = worker
        self._sidecar = sidecar
        self._offset = 0
        self._pages: dict[int, StampedPage] = {}
        self.look_ups: list[LookUp] = []
        self.breaches: list[Breach] = []
        self.accounts: list[Account] = []
        self.judged = self.breaches_judged = self.accounts_judged = 0
        """How many of these somebody has judged already."""

    def read(self) -> None:
        """Take in the whole lines that came since."""
        if not self._path.exists():
            return
        with self._path.open("rb") as source:
            source.seek(self._offset)
            data = source.read()
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        for line in data[:whole].splitlines():
            self._take(json.loads(line))

    def _take(self, told: dict[str, Any]) -> None:
        if "page" in told:
            lineage = tuple(Part(*part) for part in told["lineage"])
            self._pages[told["page"]] = StampedPage(Place(*told["place"]), lineage)
        elif "breach" in told:
            self.breaches.append(Breach(self._worker, *told["breach"]))
        elif "account" in told:
            self.accounts.append(Account.of(self._worker, told["account"]))
        else:
            invoked_ns, answered_ns, tenant, chain, wanted, l1, reason, *times = told["look"]
            pages = tuple(self._pages[number] for number in told["got"])
            self.look_ups.append(
                LookUp(
                    self._worker, self._sidecar, invoked_ns, answered_ns, tenant, chain, wanted, l1, pages,
                    MissReason(reason), *times,
                )
            )  # fmt: skip

"""What became of a fence, for people and programs, and the exit code that says it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import typer

from kv_wire.gen import admin_pb2
from stratakv.admin import UNCONFIRMED, member_plain, member_table
from stratakv.presentation import Paper, print_json, say, what_is_done_stands

_REASONS: Mapping[int, str] = {
    number: name.removeprefix("UNCONFIRMED_").lower() for name, number in admin_pb2.Unconfirmed.items()
}
_PROMISES = {
    "hidden": "hidden: no look-up from now on gets a matching page, on any node",
    "drained": "drained: nothing that uses a matching page is left anywhere",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceReport:
    """One command's answer. `wait` is "hidden", "drained" or "none"; `answer` None: the connection broke after sending."""

    verb: str
    wait: str
    what: str
    request_id: bytes
    answer: admin_pb2.InvalidateResponse | None
    broken: str = ""
    not_all: str = ""
    """Why more may have to be appended than was, where what was asked for holds of that; empty where it is all."""
    again: Sequence[str] = ()
    """Options that a repeated command needs besides its request id."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    before: Callable[[], None] = lambda: None
    """Prints for people what comes before the rest."""

    @property
    def reason(self) -> str:
        """Why the promise is not reached, in a word; empty where it is."""
        if self.answer is None:
            return "connection"
        if self.not_all:
            return "namespaces"
        return "" if self.answer.confirmed else _REASONS.get(self.answer.unconfirmed, "unknown")

    @property
    def incarnation(self) -> bytes:
        """The log that the records stand in; empty where none is known to stand."""
        return self.answer.stamps[-1].incarnation if self.answer and self.answer.stamps else b""

    @property
    def exit_code(self) -> int:
        """0 where what was asked for holds."""
        return 0 if self.reason in ("", "not_asked") else UNCONFIRMED

    def as_plain(self) -> dict[str, Any]:
        """As JSON types; docs/invalidation.md describes every key."""
        answer = self.answer or admin_pb2.InvalidateResponse()
        return {
            **self.extra,
            "appended": [
                {"incarnation": stamp.incarnation.hex(), "revision": stamp.revision}
                for stamp in answer.stamps
            ],
            "confirmed": answer.confirmed and not self.not_all,
            "exit_code": self.exit_code,
            "gone": [member_plain(member) for member in answer.gone],
            "gone_count": answer.gone_count,
            "missing": [member_plain(member) for member in answer.missing],
            "missing_count": answer.missing_count,
            "reason": self.reason,
            "request_id": self.request_id.hex(),
            "wait": self.wait,
            "waited_ms": answer.waited_ms,
            "why": self.not_all or answer.why or self.broken,
        }

    def end(self, *, as_json: bool) -> None:
        """Print it, and end the command with its exit code."""
        with what_is_done_stands(self.verb):
            if as_json:
                print_json(self.as_plain())
            else:
                self.before()
                self._print()
        if self.exit_code:
            with what_is_done_stands(self.verb):
                say(self.verb, self._failure())
        raise typer.Exit(self.exit_code)

    def _print(self) -> None:
        answer = self.answer
        if answer is None:
            return
        console = Paper()
        console.print(
            f"{self.what}: {_revisions(answer.stamps)}", markup=False, highlight=False, soft_wrap=True
        )
        if answer.confirmed and not self.not_all:
            console.print(
                f"{_PROMISES[self.wait]} ({answer.waited_ms} ms)",
                style="green",
                highlight=False,
                soft_wrap=True,
            )
        if answer.gone:
            console.show(member_table(f"{answer.gone_count} silent, given up for gone", list(answer.gone)))
        if answer.missing:
            console.show(member_table(f"{answer.missing_count} missing", list(answer.missing)))

    def _failure(self) -> str:
        options = " ".join(["--request-id", self.request_id.hex(), *map(shlex.quote, self.again)])
        again = f"repeat it with {options}, which appends nothing twice"
        if self.answer is None:
            return f"{self.broken}: the records may have been appended, and nobody waited for them; {again}"
        ids = ", ".join(member.id.hex() for member in self.answer.missing)
        missing = f" (missing: {ids})" if ids else ""
        return f"not confirmed: {self.not_all or self.answer.why}{missing}; {again}"


def _revisions(stamps: Sequence[Any]) -> str:
    if not stamps:
        return "no record is known to stand"
    revisions = sorted({stamp.revision for stamp in stamps})
    first, last = revisions[0], revisions[-1]
    spread = "" if last - first == len(revisions) - 1 else f", {len(revisions)} of them"
    shown = f"record {first}" if first == last else f"records {first} to {last}{spread}"
    return f"{shown} of log {stamps[-1].incarnation.hex()}"

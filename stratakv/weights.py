"""`stratakv weights`: tells the fleet that a model's weights have changed, and invalidates those they replace."""

from __future__ import annotations

from typing import Annotated

import typer

from kv_types.errors import LogUnreachableError
from kv_wire.gen import admin_pb2
from stratakv.admin import (
    EndpointOption,
    JsonOption,
    ReasonOption,
    RuntimeDirOption,
    Sidecar,
    author,
    sidecar_of,
)
from stratakv.fence_report import FenceReport
from stratakv.waiting import (
    TIMEOUT_DEFAULT,
    NoWaitOption,
    RequestIdOption,
    TimeoutOption,
    WaitingCommand,
    WaitOption,
    call_and_wait,
    waiting_of,
)

_VERB = "weights set-version"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)


@app.callback()
def _weights() -> None:
    """Weights versions of the fleet's models."""


@app.command("set-version", cls=WaitingCommand)
def set_version(
    version: Annotated[str, typer.Argument(help="What the weights are called from now on.")],
    model: Annotated[str, typer.Option("--model", help="Whose weights.")],
    replaced: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="OLD", help="The version that is invalidated (default: the one announced last)."
        ),
    ] = None,
    reason: ReasonOption = "",
    wait: WaitOption = None,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
    endpoint: EndpointOption = None,
    runtime_dir: RuntimeDirOption = None,
) -> None:
    """Announce weights that have been changed already, then invalidate those that they replace.

    Workers that follow announcements compute under the new version from their next request on. Change the weights first:
    a worker that still runs the old ones after this makes pages that count as new.
    """
    with sidecar_of(_VERB, endpoint, runtime_dir) as sidecar:
        waiting = waiting_of(wait, timeout, request_id, no_wait=no_wait)
        last = replaced if replaced is not None else _announced(sidecar, model)
        old = None if replaced is None and last == version else last
        request = admin_pb2.AnnounceWeightsRequest(
            model=model, version=version, reason=reason, author=author(), wait=waiting.wait,
            timeout_ms=waiting.timeout_ms, request_id=waiting.request_id, invalidate_version=old,
        )  # fmt: skip
        answer, broken = call_and_wait(sidecar.admin.announce_weights, request, waiting)
    again = [] if replaced is not None or old is None else ["--from", old]
    FenceReport(
        verb=_VERB, wait=waiting.name, what=f"{model} has weights {version}, {_invalidated(old, again=last == version)}",
        request_id=waiting.request_id, answer=answer, broken=broken, again=again,
        extra={"model": model, "version": version, "invalidated_version": old},
    ).end(as_json=as_json)  # fmt: skip


def _announced(sidecar: Sidecar, model: str) -> str | None:
    """The version announced last, None: there is none.

    Raises LogUnreachableError while the sidecar has read no log, and so knows nothing of announcements.
    """
    status = sidecar.status()
    if not status.log.incarnation:
        raise LogUnreachableError(
            f"this sidecar has not read the invalidation log yet ({status.log.reason}), so that it can't tell which version "
            "is replaced; nothing was appended: name it by --from, or try again"
        )
    return status.weights_versions.get(model)


def _invalidated(old: str | None, *, again: bool) -> str:
    if old is not None:
        return f"{old} is invalidated"
    if again:
        return "which was announced already, so that no other version is invalidated; name one by --from"
    return "no other version was announced, so that none is invalidated"

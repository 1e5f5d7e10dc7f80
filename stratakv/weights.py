"""`stratakv weights`: tells the fleet that a model's weights have changed, and invalidates those they replace."""

from __future__ import annotations

from typing import Annotated

import typer

from kv_wire.gen import admin_pb2
from stratakv.admin import (
    EndpointOption,
    JsonOption,
    ReasonOption,
    RuntimeDirOption,
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
            "--from",
            metavar="OLD",
            help="The only version that is invalidated (default: every one but VERSION).",
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
    """Announce weights that have been changed already, then invalidate what was computed by any others of the model.

    Workers that follow announcements compute under the new version from their next request on. Change the weights first:
    a worker that still runs the old ones after this makes pages that count as new.
    """
    with sidecar_of(_VERB, endpoint, runtime_dir) as sidecar:
        waiting = waiting_of(wait, timeout, request_id, no_wait=no_wait)
        sidecar.status()  # one answers, so that a later failure is known to have come after that
        request = admin_pb2.AnnounceWeightsRequest(
            model=model, version=version, reason=reason, author=author(), wait=waiting.wait,
            timeout_ms=waiting.timeout_ms, request_id=waiting.request_id, invalidate_version=replaced,
        )  # fmt: skip
        answer, broken = call_and_wait(sidecar.admin.announce_weights, request, waiting)
    gone = "every other version is" if replaced is None else f"{replaced} is"
    FenceReport(
        verb=_VERB, wait=waiting.name, what=f"{model} has weights {version}, {gone} invalidated",
        request_id=waiting.request_id, answer=answer, broken=broken,
        extra={"model": model, "version": version, "invalidated_version": replaced},
    ).end(as_json=as_json)  # fmt: skip

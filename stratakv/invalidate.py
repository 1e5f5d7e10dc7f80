"""`stratakv invalidate`: appends to the invalidation log what its options select, and waits until it is final everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import grpc
import typer

from kv_types.errors import ConfigError, LogUnreachableError, StrataError
from kv_types.limits import PREFIX_ROUNDS_MAX
from kv_types.outcomes import Tier
from kv_types.selectors import Selector
from kv_wire.admin_conversions import selector_to_wire
from kv_wire.gen import admin_pb2
from kv_wire.status import from_rpc_error
from sidecar.units import format_size
from stratakv.admin import (
    UNREACHABLE,
    EndpointOption,
    FleetNamespaces,
    JsonOption,
    ReasonOption,
    RuntimeDirOption,
    Sidecar,
    author,
    is_interactive,
    local_now,
    sidecar_of,
)
from stratakv.fence_report import FenceReport
from stratakv.prefixes import Prefix, prefix_of
from stratakv.presentation import Paper, plain, print_json, say, table_of
from stratakv.selection import (
    AdapterOption,
    Fields,
    KeyOption,
    ModelOption,
    NamespaceOption,
    OtherWeightsOption,
    PrefixTextOption,
    PrefixTokensOption,
    ProducerOption,
    Selection,
    SinceOption,
    SinceRevisionOption,
    SpecialTokensOption,
    TagOption,
    TenantOption,
    TokenizerOption,
    UntilOption,
    UntilRevisionOption,
    WeightsOption,
    select,
    selector_of,
    selector_plain,
)
from stratakv.times import exact_time
from stratakv.waiting import (
    TIMEOUT_DEFAULT,
    NoWaitOption,
    RequestIdOption,
    TimeoutOption,
    Waiting,
    WaitingCommand,
    WaitOption,
    call_and_wait,
    waiting_of,
)

_VERB = "invalidate"
_DRY_RUN_S = 60.0
_SHOWN_MAX_ROWS = 20

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=WaitingCommand)
def invalidate(
    everything: Annotated[bool, typer.Option("--all", help="Everything there is.")] = False,
    model: ModelOption = None,
    weights_version: WeightsOption = None,
    other_weights_than: OtherWeightsOption = None,
    adapter: AdapterOption = None,
    tenant: TenantOption = None,
    namespace: NamespaceOption = None,
    prefix_tokens: PrefixTokensOption = None,
    prefix_text: PrefixTextOption = None,
    tokenizer: TokenizerOption = None,
    special_tokens: SpecialTokensOption = None,
    key: KeyOption = None,
    producer: ProducerOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    since_revision: SinceRevisionOption = None,
    until_revision: UntilRevisionOption = None,
    tag: TagOption = None,
    reason: ReasonOption = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would go on this node, and change nothing.")
    ] = False,
    wait: WaitOption = None,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    yes: Annotated[
        bool, typer.Option("--yes", help="Don't ask when more than one namespace may be meant.")
    ] = False,
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
    endpoint: EndpointOption = None,
    runtime_dir: RuntimeDirOption = None,
) -> None:
    """Invalidate pages everywhere: every option given must match. Exits 0 once the promise holds, 3 if that is not known."""
    with sidecar_of(_VERB, endpoint, runtime_dir) as sidecar:
        waiting = waiting_of(wait, timeout, request_id, no_wait=no_wait)
        chosen = Fields(
            model=model, weights_version=weights_version, adapter=adapter, tenant=tenant, namespace=namespace,
            key=key, producer=producer, tag=tag, since=since, until=until, since_revision=since_revision,
            until_revision=until_revision, other_weights_than=other_weights_than,
        )  # fmt: skip
        prefix = prefix_of(prefix_tokens, prefix_text, tokenizer, special_tokens=special_tokens)
        selector = selector_of(chosen, prefix, everything=everything, now=local_now())
        selection = select(selector, prefix, _known(sidecar, prefix).by_id)
        if dry_run:
            _show_count(selection, count(sidecar, selection), as_json=as_json)
            return
        if not yes and not selection.is_narrow:
            _confirm(sidecar, selection)
        report = _append(sidecar, selection, waiting, reason=reason)
        if prefix is not None:
            report = _append_to_all(sidecar, selector, prefix, selection, report, waiting, reason=reason)
    report.end(as_json=as_json)


def _append_to_all(
    sidecar: Sidecar,
    selector: Selector,
    prefix: Prefix,
    selection: Selection,
    report: FenceReport,
    waiting: Waiting,
    *,
    reason: str,
) -> FenceReport:
    """Apply the prefix in namespaces that came meanwhile too, until there are none.

    Only what the directory holds behind an append is known to be all that has older pages. The whole is appended again
    each time, under the same request id, so that nothing stands twice and one answer speaks for all of it.
    """
    for _ in range(PREFIX_ROUNDS_MAX):
        if report.exit_code:
            return report
        try:
            known = _known(sidecar, prefix)
            if report.incarnation != known.incarnation:
                return replace(report, not_all="the log began anew while the fleet's namespaces were read")
            wider = _widened(selection, select(selector, prefix, known.by_id))
            if len(wider.namespaces) == len(selection.namespaces):
                return report
            selection, report = wider, _append(sidecar, wider, waiting, reason=reason)
        except KeyboardInterrupt as stop:
            told = str(stop) or "interrupted"
            return replace(report, not_all=f"{told} while the fleet's namespaces were read")
        except (StrataError, grpc.RpcError) as error:
            failure = error if isinstance(error, StrataError) else from_rpc_error(error)
            return replace(report, not_all=f"namespaces that were added meanwhile may be missing ({failure})")
    return replace(report, not_all="namespaces were added to the fleet all the time")


def _widened(selection: Selection, found: Selection) -> Selection:
    """What was selected already, in its order, and behind it what is new."""
    pairs = zip(found.namespaces, found.selectors, strict=True)
    fresh = [(space, one) for space, one in pairs if space not in selection.namespaces]
    return Selection(
        [*selection.selectors, *(one for _, one in fresh)],
        [*selection.namespaces, *(space for space, _ in fresh)],
        selection.prefix_tokens,
    )


def _append(sidecar: Sidecar, selection: Selection, waiting: Waiting, *, reason: str) -> FenceReport:
    request = admin_pb2.InvalidateRequest(
        selectors=[selector_to_wire(one) for one in selection.selectors], reason=reason, author=author(),
        wait=waiting.wait, timeout_ms=waiting.timeout_ms, request_id=waiting.request_id,
    )  # fmt: skip
    answer, broken = call_and_wait(sidecar.admin.invalidate, request, waiting)
    return FenceReport(
        verb=_VERB, wait=waiting.name, what=f"invalidated {selection.describe()}", request_id=waiting.request_id,
        answer=answer, broken=broken, again=_times(selection.selectors[0]), extra=_selected(selection),
        before=lambda: _show_namespaces(selection),
    )  # fmt: skip


def count(sidecar: Sidecar, selection: Selection) -> Sequence[admin_pb2.TierCount]:
    """Pages and bytes that would go on the sidecar's node, by tier. Raises grpc.RpcError."""
    request = admin_pb2.DryRunRequest(selectors=[selector_to_wire(one) for one in selection.selectors])
    answer: admin_pb2.DryRunResponse = sidecar.admin.dry_run(request, timeout=_DRY_RUN_S)
    return answer.tiers


def _known(sidecar: Sidecar, prefix: Prefix | None) -> FleetNamespaces:
    """The namespaces to apply a prefix in, all of them or none at all.

    Shows besides that a sidecar answers, so that a later failure is known to have come after that.
    """
    if prefix is None:
        sidecar.status()
        return FleetNamespaces({})
    known = sidecar.namespaces()
    if known.incomplete:
        raise LogUnreachableError(
            f"a prefix is applied in every namespace of the fleet, and not all are known now: {known.incomplete}"
        )
    return known


def _confirm(sidecar: Sidecar, selection: Selection) -> None:
    if not is_interactive():
        raise ConfigError(
            f"this may reach more than one namespace ({selection.describe()}) and nobody is there to be asked: add --yes, "
            "or look first with --dry-run"
        )
    _show_namespaces(selection)
    told = ", ".join(_counted(tier) for tier in count(sidecar, selection))
    typer.echo(f"This selects {selection.describe()}. On this node that is {told}.", err=True)
    if not typer.confirm("Invalidate it on every node?", err=True):
        say(_VERB, "nothing was appended")
        raise typer.Exit(UNREACHABLE)


def _show_count(selection: Selection, tiers: Sequence[admin_pb2.TierCount], *, as_json: bool) -> None:
    if as_json:
        counted = [{"tier": Tier(tier.tier).name, "pages": tier.pages, "bytes": tier.bytes} for tier in tiers]
        print_json({**_selected(selection), "dry_run": True, "tiers": counted})
        return
    _show_namespaces(selection)
    typer.echo(f"would invalidate {selection.describe()}")
    for tier in tiers:
        typer.echo(f"  {_counted(tier)} on this node")


def _counted(tier: admin_pb2.TierCount) -> str:
    return f"{Tier(tier.tier).name} {tier.pages:,} pages, {format_size(tier.bytes)}"


def _times(selector: Selector) -> list[str]:
    """Options that name the same times whenever the command is repeated."""
    times = (("--since", selector.since_ms), ("--until", selector.until_ms))
    return [word for option, ms in times if ms is not None for word in (option, exact_time(ms))]


def _selected(selection: Selection) -> dict[str, Any]:
    return {
        "namespaces": [namespace.id.hex() for namespace in selection.namespaces],
        "prefix_tokens": selection.prefix_tokens,
        "selectors": [selector_plain(one) for one in selection.selectors],
    }


def _show_namespaces(selection: Selection) -> None:
    """Say in which namespaces a prefix was given a key, the first of many."""
    if not selection.namespaces:
        return
    table = table_of(selection.describe(), "namespace", "model", "tenant", "page", "key")
    pairs = zip(selection.namespaces, selection.selectors, strict=True)
    for namespace, selector in list(pairs)[:_SHOWN_MAX_ROWS]:
        assert selector.key is not None, "a prefix's selectors name a key"
        table.add_row(
            namespace.id.hex(), plain(namespace.model), plain(namespace.tenant), f"{namespace.page_tokens} tokens",
            selector.key.hex(),
        )  # fmt: skip
    Paper(stderr=True).show(table)
    if len(selection.namespaces) > _SHOWN_MAX_ROWS:
        typer.echo(f"… and {len(selection.namespaces) - _SHOWN_MAX_ROWS} more; --json lists all", err=True)

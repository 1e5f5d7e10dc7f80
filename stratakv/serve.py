"""`stratakv serve`: flags made from the settings model, settings shown, then the daemon until it ends."""

from __future__ import annotations

import asyncio
import inspect
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kv_types.errors import ConfigError, StrataError
from sidecar.config import Settings, accepted, default_shown
from sidecar.config_sources import LoadedSettings, flag_of, load_settings, variable_of
from sidecar.logs import configure, logger
from stratakv.version import __version__

_USAGE = 2

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def serve(config: Path | None = None, **flags: Any) -> None:
    """Run the sidecar daemon of this node until SIGTERM or SIGINT.

    Every setting can also be given as STRATAKV_<NAME> in the environment or as a key of a TOML file; flags win
    over the environment, which wins over the file.
    """
    try:
        loaded = load_settings(
            {name: value for name, value in flags.items() if value is not None}, config_file=config
        )
    except ConfigError as error:
        _fail(error, code=_USAGE)
    configure(level=loaded.settings.log_level, log_format=loaded.settings.log_format)
    _show(loaded)
    try:
        asyncio.run(_run(loaded.settings))
    except StrataError as error:
        _fail(error, code=1)


async def _run(settings: Settings) -> None:
    from sidecar.runtime import Sidecar  # noqa: PLC0415 - a wrong flag should not wait for gRPC to load

    await Sidecar(settings, version=__version__).run()


def _show(loaded: LoadedSettings) -> None:
    if not sys.stderr.isatty():
        log = logger("settings")
        for name, value, source in loaded.rows():
            log.info("setting", name=name, value=value, source=source)
        return
    table = Table(title=f"stratakv {__version__}", title_justify="left")
    for heading in ("setting", "value", "from"):
        table.add_column(heading)
    for name, value, source in loaded.rows():
        # Text: a path is not markup
        table.add_row(name, Text(value), Text(source), style="dim" if source == "default" else None)
    Console(stderr=True).print(table)


def _fail(error: StrataError, *, code: int) -> None:
    typer.echo(f"stratakv serve: {error}", err=True)
    raise typer.Exit(code)


def _signature() -> inspect.Signature:
    """One text option a setting: parsing, bounds and messages are the model's, whatever the source."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    path = Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="TOML file with settings (STRATAKV_CONFIG)."),
    ]
    parameters = [inspect.Parameter("config", keyword, default=None, annotation=path)]
    for name, field in Settings.model_fields.items():
        text = " ".join((field.description or "").split())
        flag, kind = flag_of(name), bool if field.annotation is bool else str
        option = typer.Option(
            f"{flag}/--no-{flag[2:]}" if kind is bool else flag,
            metavar=None if kind is bool else accepted(name).upper(),
            help=f"{text} (default: {default_shown(name)}; {variable_of(name)})",
            show_default=False,
        )
        annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
        parameters.append(inspect.Parameter(name, keyword, default=None, annotation=annotation))
    return inspect.Signature(parameters)


def _as_command() -> None:
    serve.__signature__ = _signature()  # type: ignore[attr-defined]
    serve.__annotations__ = {
        name: parameter.annotation for name, parameter in _signature().parameters.items()
    }
    app.command()(serve)


_as_command()

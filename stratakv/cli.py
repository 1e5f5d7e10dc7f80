"""The `stratakv` command: gathers the verbs, each loaded only when it is used."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from stratakv.streams import OutputError, take_streams
from stratakv.version import __version__

_VERBS = {
    "serve": ("stratakv.serve", "Run the sidecar daemon of this node."),
    "status": ("stratakv.status", "Show how a sidecar is doing."),
    "invalidate": ("stratakv.invalidate", "Invalidate pages on every node, and know when it is final."),
    "log": ("stratakv.log", "Show what was invalidated, by whom and why."),
    "members": ("stratakv.members", "Show who is in the fleet and how far each has followed."),
    "namespaces": ("stratakv.namespaces", "Show the namespaces that the fleet has used."),
    "inspect": ("stratakv.inspect_pages", "Show where pages are, and why they are valid or not."),
    "weights": ("stratakv.weights", "Tell the fleet that a model's weights have changed."),
    "replicas": ("stratakv.replicas", "Set how many replicas of the log must answer."),
    "simulate": ("stratakv.simulate", "Replay traces of requests: how much memory is enough."),
    "bench": ("benchmarks.cli", "Measure this machine."),
}


class LazyVerbs(TyperGroup):
    """Imports a verb's module when the verb is used: `status` must not wait for what `bench` needs."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the verbs in the order of their table."""
        del ctx
        return list(_VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a verb, None for an unknown one."""
        del ctx
        if cmd_name not in _VERBS:
            return None
        module, text = _VERBS[cmd_name]
        if self._listing:
            return TyperCommand(name=cmd_name, help=text)
        command = typer.main.get_command(import_module(module).app)
        command.name, command.help = cmd_name, command.help or text
        return command

    def get_help(self, ctx: Any) -> str:
        """Return the help; it needs the verbs' names and one line of each, not the verbs."""
        self._listing = True
        try:
            return super().get_help(ctx)
        finally:
            self._listing = False


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stratakv {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=LazyVerbs,
    help="A multi-tier KV cache for LLM serving.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    del version


def main() -> None:
    """Run the command.

    That its reader has read enough ends a command that only shows something, quietly; that there is no room is its failure.
    """
    # gRPC's core writes its own lines to standard error, among ours and in another form; errors are enough.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    take_streams()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except OutputError as error:
        if not error.is_unread:
            typer.echo(f"stratakv: not all of the output could be written ({error})", err=True)
        sys.exit(0 if error.is_unread else 1)

"""`stratakv bench`: gathers the measurements, each loaded only when it is used."""

from __future__ import annotations

import typer

from benchmarks import invalidate, l1, l3, layers, local, vllm

app = typer.Typer(help="Measure stratakv on this machine.", no_args_is_help=True, add_completion=False)
app.command("local")(local.local)
app.command("layers")(layers.layers)
app.command("l1")(l1.main)
app.command("l3")(l3.l3)
app.command("invalidate")(invalidate.invalidate)
app.command("vllm")(vllm.vllm)

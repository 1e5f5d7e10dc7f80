"""Where settings come from: flags over environment over file over defaults, each value with its source."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import EnvSettingsSource, TomlConfigSettingsSource

from kv_types.errors import ConfigError
from sidecar.config import ENVIRONMENT_PREFIX, Settings, shown, without_secrets

CONFIG_VARIABLE = "STRATAKV_CONFIG"
OTHER_VARIABLES = frozenset({CONFIG_VARIABLE, "STRATAKV_ENDPOINT"})
"""Variables of ours that are no settings of the daemon: the file to read, and what workers read."""

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings in force and, for each name, the flag, variable or file that set it, or "default"."""

    settings: Settings
    sources: Mapping[str, str]

    def rows(self) -> list[tuple[str, str, str]]:
        """(name, value as it can be written, source) of every setting, in the model's order."""
        return [
            (name, shown(name, getattr(self.settings, name)), self.sources[name])
            for name in Settings.model_fields
        ]


def flag_of(name: str) -> str:
    """Return the command-line flag of a setting."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return ENVIRONMENT_PREFIX + name.upper()


def load_settings(flags: Mapping[str, Any], *, config_file: Path | None = None) -> LoadedSettings:
    """Merge all sources; `flags` holds what the command line set, by setting name.

    Raises ConfigError naming the key, where it stands, and what was likely meant.
    """
    file = config_file or _file_from_environment()
    layers = (
        ({name: flag_of(name) for name in flags}, flags),
        _environment_layer(),
        _file_layer(file),
    )
    values: dict[str, Any] = {}
    sources: dict[str, str] = dict.fromkeys(Settings.model_fields, DEFAULT)
    for names, layer in reversed(layers):
        values |= layer
        sources |= names
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise ConfigError(_explain(error, values, sources)) from error
    return LoadedSettings(settings, sources)


def _file_from_environment() -> Path | None:
    path = os.environ.get(CONFIG_VARIABLE)
    return Path(path) if path else None


def _environment_layer() -> tuple[dict[str, str], dict[str, Any]]:
    known = {variable_of(name): name for name in Settings.model_fields}
    for variable in os.environ:
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in known.keys() | OTHER_VARIABLES:
            raise ConfigError(
                f"the environment variable {variable} is not a setting{_meant(variable, known)}; "
                f"unset it, or see docs/configuration.md"
            )
    layer = dict(EnvSettingsSource(Settings)())
    return {name: variable_of(name) for name in layer}, layer


def _file_layer(file: Path | None) -> tuple[dict[str, str], dict[str, Any]]:
    if file is None:
        return {}, {}
    try:
        layer = dict(TomlConfigSettingsSource(Settings, toml_file=_readable(file))())
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: it is not UTF-8 text ({error})") from error
    for name in layer:
        if name not in Settings.model_fields:
            raise ConfigError(
                f"{file}: unknown key {name!r}{_meant(name, Settings.model_fields)}; "
                "remove it, or see docs/configuration.md"
            )
    return dict.fromkeys(layer, str(file)), layer


def _readable(file: Path) -> Path:
    try:
        with file.open("rb"):
            return file
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {file}: {error.strerror}") from error


def _meant(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name.replace("-", "_"), list(known), n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def _explain(error: ValidationError, values: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    lines = []
    for problem in error.errors():
        if not problem["loc"]:
            lines.append(_reason(problem, name=""))
            continue
        name = str(problem["loc"][0])
        value = values.get(name, problem["input"])
        if isinstance(value, str):
            value = without_secrets(value)
        lines.append(f"{name} = {value!r} (from {sources.get(name, DEFAULT)}): {_reason(problem, name=name)}")
    return "; ".join(lines)


def _reason(problem: ErrorDetails, *, name: str) -> str:
    context = problem.get("ctx", {})
    if "ge" in context:
        return f"it is at least {shown(name, context['ge'])}"
    if "le" in context:
        return f"it is at most {shown(name, context['le'])}"
    return problem["msg"].removeprefix("Value error, ")

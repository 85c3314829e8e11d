"""Settings of a command: environment over TOML file over default, and no key that is not one."""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from fleet.errors import InvalidInputError


class Section(BaseModel):
    """One table of the settings file, such as `[broker]`."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Settings(BaseSettings):
    """All settings of one command; a subclass gives its `env_prefix` and its sections.

    `CLOUD_HUB_BROKER__HOST` overrides `host` of `[broker]`. Passwords are `SecretStr`.
    """

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_nested_delimiter="__",
        ser_json_inf_nan="strings",
        validate_default=True,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The file's values come in as init values, so the environment goes first."""
        return env_settings, init_settings


S = TypeVar("S", bound=Settings)


def load_settings(kind: type[S], path: Path | None) -> S:
    """The settings in force: environment over the TOML file at `path` over defaults.

    Raises:
        InvalidInputError: The file cannot be read, a key is unknown or a value is unusable;
            the sentence names the key, and the nearest one that exists.
    """
    _check_environment(kind, os.environ)
    values = _read(path) if path is not None else {}
    try:
        return kind(**values)
    except ValidationError as error:
        raise InvalidInputError(_sentence(kind, error, path)) from error
    except SettingsError as error:
        raise InvalidInputError(f"the environment holds no usable settings: {error}") from error


def show_settings(settings: Settings) -> str:
    """The settings in force as JSON, passwords masked."""
    return settings.model_dump_json(indent=2)


def setting_keys(kind: type[BaseModel], above: str = "") -> Iterator[str]:
    """Every key of `kind` as it stands in the file, such as `broker.host`."""
    for key, _ in _fields(kind, above):
        yield key


def settings_table(kind: type[Settings]) -> str:
    """The Markdown table of all settings of `kind`: key, variable, default, meaning."""
    prefix = str(kind.model_config.get("env_prefix", ""))
    lines = ["| key | variable | default | meaning |", "| --- | --- | --- | --- |"]
    for key, field in _fields(kind):
        variable = prefix + key.replace(".", "__").upper()
        default = (
            "" if field.is_required() else _shown(field.get_default(call_default_factory=True))
        )
        meaning = (field.description or "").replace("|", "\\|")
        lines.append(f"| `{key}` | `{variable}` | {default} | {meaning} |")
    return "\n".join(lines)


def _fields(kind: type[BaseModel], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _fields(field.annotation, f"{above}{name}.")
        else:
            yield above + name, field


def _shown(default: object) -> str:
    """A default as the settings file would say it."""
    match default:
        case None:
            return "unset"
        case SecretStr():
            return "empty" if not default.get_secret_value() else "secret"
        case "":
            return "empty"
        case bool():
            return f"`{str(default).lower()}`"
        case _:
            return f"`{default}`"


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(f"settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"settings file {path} is not TOML: {error}") from error


# Kubernetes sets these for a service of the command's name.
_SERVICE_LINK = re.compile(r"SERVICE_(HOST|PORT)\w*|PORT|PORT_\d+_(TCP|UDP)\w*")


def _check_environment(kind: type[Settings], environment: Mapping[str, str]) -> None:
    """Refuses variables with the command's prefix that set nothing (pydantic skips them)."""
    prefix = str(kind.model_config.get("env_prefix", "")).upper()
    for variable in environment:
        rest = variable.upper().removeprefix(prefix)
        if not prefix or rest == variable.upper() or _SERVICE_LINK.fullmatch(rest):
            continue
        if rest.split("__")[0].lower() not in kind.model_fields:
            key = rest.replace("__", ".").lower()
            raise InvalidInputError(f"{variable} sets no setting{_hint(kind, key)}")


def _sentence(kind: type[Settings], error: ValidationError, path: Path | None) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    source = f"{path} or the environment" if path is not None else "the environment"
    if first["type"] == "extra_forbidden":
        return f"{source}: there is no setting {key!r}{_hint(kind, key)}"
    if first["type"] == "missing":
        return f"setting {key!r} has no default: give it in a file or the environment"
    return f"{source}: setting {key!r} is not usable: {first['msg']}"


def _hint(kind: type[Settings], key: str) -> str:
    """The nearest key that exists, by its whole path or by its last part."""
    keys = list(setting_keys(kind))
    sections = {known.split(".")[0]: known.split(".")[0] for known in keys}
    by_last = {known.rsplit(".", 1)[-1]: known for known in keys}
    for candidates, wanted in (
        ({known: known for known in keys} | sections, key),
        (by_last, key.rsplit(".", 1)[-1]),
    ):
        if near := difflib.get_close_matches(wanted, candidates, n=1, cutoff=0.7):
            return f"; did you mean {candidates[near[0]]!r}?"
    return "; `settings` lists those that exist"

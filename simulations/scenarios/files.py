"""Scenarios in TOML: those that ship, by name, and any other file, by path."""

import difflib
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fleet.errors import InvalidInputError
from simulations.scenarios.scenario import Scenario

_SUFFIX = ".toml"


def shipped() -> dict[str, Path]:
    """The scenarios that ship, by name."""
    folder = Path(str(files("simulations.scenarios") / "shipped"))
    return {path.stem: path for path in sorted(folder.glob(f"*{_SUFFIX}"))}


def load(name: str) -> Scenario:
    """The scenario of that name, or in the file of that name.

    Raises:
        InvalidInputError: There is none, or it is not one; the sentence names what is wrong.
    """
    known = shipped()
    path = known.get(name) or Path(name)
    if name not in known and not name.endswith(_SUFFIX):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
        raise InvalidInputError(
            f"there is no scenario {name!r}: {hint} A file of your own ends in {_SUFFIX}"
        )
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(f"scenario file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"scenario file {path} is not TOML: {error}") from error
    return parse({"name": path.stem, **values}, source=str(path))


def parse(values: dict[str, Any], source: str) -> Scenario:
    """A scenario from what a TOML file holds.

    Raises:
        InvalidInputError: A key is unknown or a value is unusable.
    """
    try:
        return Scenario.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InvalidInputError(f"{source}: {_sentence(first)}") from error


def _sentence(error: ErrorDetails) -> str:
    # The tag of a fault's kind is no key of the file.
    key = ".".join(str(part) for part in error["loc"] if "-" not in str(part))
    match error["type"]:
        case "extra_forbidden":
            return (
                f"there is no key {key!r} in a scenario; docs/simulation.md lists those there are"
            )
        case "missing":
            return f"{key!r} is missing"
        case "union_tag_invalid":
            return f"{key!r} is of no known kind: {error['msg']}"
        case "union_tag_not_found":
            return f"{key!r} has no kind"
        case "value_error":
            said = error["msg"].removeprefix("Value error, ")
            return f"{key!r}: {said}" if key else said
        case _:
            return f"{key!r} is not usable: {error['msg']}"

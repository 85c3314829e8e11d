"""Settings: which source wins, and what is said about a key or a value that does not fit."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from fleet.errors import InvalidInputError
from fleet.settings import (
    Section,
    Settings,
    load_settings,
    setting_keys,
    settings_table,
    show_settings,
)


class Broker(Section):
    host: str = "127.0.0.1"
    port: int = Field(default=1883, ge=1, le=65_535)
    password: SecretStr | None = None


class Example(Settings):
    model_config = SettingsConfigDict(env_prefix="EXAMPLE_")

    broker: Broker = Broker()
    threshold: float = 0.5


def written(folder: Path, text: str) -> Path:
    path = folder / "example.toml"
    path.write_text(text)
    return path


def test_without_file_and_environment_the_defaults_hold() -> None:
    assert load_settings(Example, None) == Example.model_construct(
        broker=Broker.model_construct(host="127.0.0.1", port=1883, password=None), threshold=0.5
    )


def test_the_environment_overrides_the_file_key_by_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, 'threshold = 0.1\n[broker]\nhost = "file"\nport = 1')
    monkeypatch.setenv("EXAMPLE_BROKER__HOST", "environment")

    loaded = load_settings(Example, path)

    assert ("environment", 1, 0.1) == (loaded.broker.host, loaded.broker.port, loaded.threshold)


def test_passwords_are_masked_and_infinity_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE_BROKER__PASSWORD", "open sesame")
    monkeypatch.setenv("EXAMPLE_THRESHOLD", "-inf")

    shown = show_settings(load_settings(Example, None))

    assert "open sesame" not in shown
    assert '"threshold": "-Infinity"' in shown


def test_settings_cannot_be_changed() -> None:
    loaded = load_settings(Example, None)

    with pytest.raises(ValueError, match="frozen"):
        loaded.threshold = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("treshold = 1", ["'treshold'", "did you mean 'threshold'?"]),
        ("[broker]\nhots = 'x'", ["'broker.hots'", "did you mean 'broker.host'?"]),
        ("port = 1", ["'port'", "did you mean 'broker.port'?"]),
        ("[brokr]\nhost = 'x'", ["'brokr'", "did you mean 'broker'?"]),
        ("zzz = 1", ["'zzz'", "`settings` lists those that exist"]),
        ("[broker]\nport = 0", ["'broker.port'", "greater than or equal to 1"]),
        ("broker = 3", ["'broker'", "not usable"]),
        ("threshold = \n", ["is not TOML", "line 1"]),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, words: list[str]) -> None:
    path = written(tmp_path, text)

    with pytest.raises(InvalidInputError) as refusal:
        load_settings(Example, path)

    assert [] == [word for word in [*words, str(path)] if word not in str(refusal.value)]


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"absent\.toml: No such file"):
        load_settings(Example, tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("EXAMPLE_TRESHOLD", "1", ["EXAMPLE_TRESHOLD", "did you mean 'threshold'?"]),
        ("EXAMPLE_BROKER_HOST", "x", ["EXAMPLE_BROKER_HOST", "did you mean 'broker.host'?"]),
        ("EXAMPLE_BROKER__HOTS", "x", ["'broker.hots'", "did you mean 'broker.host'?"]),
        ("EXAMPLE_BROKER__PORT", "x", ["'broker.port'", "valid integer"]),
        ("EXAMPLE_BROKER", "{", ["broker"]),
    ],
)
def test_a_wrong_variable_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: list[str]
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(InvalidInputError) as refusal:
        load_settings(Example, None)

    assert [] == [word for word in words if word not in str(refusal.value)]


def test_a_refused_password_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE_BROKER", '{"password": ["open sesame"]}')

    with pytest.raises(InvalidInputError) as refusal:
        load_settings(Example, None)

    assert "open sesame" not in str(refusal.value)


@pytest.mark.parametrize(
    "variable", ["EXAMPLE_SERVICE_HOST", "EXAMPLE_PORT", "EXAMPLE_PORT_1883_TCP_ADDR"]
)
def test_kubernetes_service_links_are_not_settings(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "tcp://10.0.0.1:1883")

    assert 1883 == load_settings(Example, None).broker.port


def test_a_value_that_has_no_default_is_asked_for() -> None:
    class Needy(Settings):
        model_config = SettingsConfigDict(env_prefix="NEEDY_")
        url: str

    with pytest.raises(InvalidInputError, match="'url' has no default"):
        load_settings(Needy, None)


def test_every_key_is_listed_with_its_section() -> None:
    expected: list[Any] = ["broker.host", "broker.port", "broker.password", "threshold"]

    assert expected == list(setting_keys(Example))


def test_the_table_shows_key_variable_default_and_meaning() -> None:
    class Talkative(Settings):
        model_config = SettingsConfigDict(env_prefix="TALK_")
        name: str = Field(default="", description="what to say | or not")
        token: SecretStr = Field(default=SecretStr("x"), description="never shown")
        loud: bool = Field(default=True, description="whether to shout")

    assert [
        "| `name` | `TALK_NAME` | empty | what to say \\| or not |",
        "| `token` | `TALK_TOKEN` | secret | never shown |",
        "| `loud` | `TALK_LOUD` | `true` | whether to shout |",
    ] == settings_table(Talkative).splitlines()[2:]

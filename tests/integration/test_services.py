"""The servers that tests lean on start, keep what they should and end."""

import socket

import psycopg
import pytest

from tests.services import Mosquitto


@pytest.mark.broker
def test_a_mosquitto_starts_again_on_its_port(mosquitto: Mosquitto) -> None:
    mosquitto.kill()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", mosquitto.port), timeout=1)

    mosquitto.start()

    socket.create_connection(("127.0.0.1", mosquitto.port), timeout=1).close()


@pytest.mark.postgres
def test_each_test_has_a_database_of_its_own(postgres_url: str) -> None:
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as connection:
        tables = connection.execute("select 1 from pg_tables where schemaname = 'public'")

        assert tables.fetchall() == []

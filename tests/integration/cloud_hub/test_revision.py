"""Migrations: they make the schema of the tables, once, and tell other databases apart."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text

from cloud_hub.store import revision
from cloud_hub.store.database import Database
from cloud_hub.store.revision import Standing
from cloud_hub.store.tables import Base
from fleet.errors import StoreError


def test_the_schema_of_the_migrations_is_that_of_the_tables(database: Database) -> None:
    with database.read() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, Base.metadata) == []


def test_a_new_database_is_made_only_where_that_is_wanted(empty: Database) -> None:
    with pytest.raises(StoreError, match="is empty: run `cloud_hub migrate`"):
        revision.prepare(empty, create=False)

    revision.prepare(empty, create=True)

    assert revision.standing(empty) is Standing.CURRENT
    revision.prepare(empty, create=False)


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("DELETE FROM alembic_version", "run `cloud_hub migrate`"),
        ("UPDATE alembic_version SET version_num = 'future'", "later release"),
        ("DROP TABLE alembic_version", "another program"),
    ],
)
def test_a_database_of_another_revision_is_refused_with_what_to_do(
    database: Database, statement: str, sentence: str
) -> None:
    with database.write() as connection:
        connection.execute(text(statement))

    with pytest.raises(StoreError, match=sentence):
        revision.prepare(database, create=True)


@pytest.mark.parametrize("statement", ["UPDATE alembic_version SET version_num = 'future'"])
def test_migrate_leaves_a_later_database_alone(database: Database, statement: str) -> None:
    with database.write() as connection:
        connection.execute(text(statement))

    with pytest.raises(StoreError, match="later release"):
        revision.migrate(database)


def test_migrating_twice_changes_nothing(database: Database) -> None:
    assert revision.migrate(database) == revision.head()


def test_five_that_start_on_an_empty_database_make_it_once(url: str) -> None:
    def start(_: int) -> Standing:
        with Database(url) as database:
            revision.migrate(database)
            return revision.standing(database)

    with ThreadPoolExecutor(5) as pool:
        found = list(pool.map(start, range(5)))

    assert found == [Standing.CURRENT] * 5


def test_a_database_that_cannot_be_opened_is_a_sentence(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("store")
    (folder / "hub.db").write_bytes(b"this is no database" * 100)
    with (
        Database(f"sqlite:///{folder / 'hub.db'}") as database,
        pytest.raises(StoreError, match="not a database"),
    ):
        revision.standing(database)
    with pytest.raises(StoreError, match="cannot be used"):
        Database("no url")
    with (
        Database("postgresql+psycopg://nobody@127.0.0.1:1/none") as server,
        pytest.raises(StoreError, match=r"refused|failed"),
    ):
        revision.standing(server)

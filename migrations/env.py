"""Alembic's entry: runs migrations on the connection it is given, or on `-x url=…`."""

from alembic import context
from sqlalchemy import Connection

from cloud_hub.store.database import Database
from cloud_hub.store.tables import Base


def run(connection: Connection) -> None:
    """Runs what the command asks for, inside the connection's transaction."""
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        compare_type=True,
        compare_server_default=True,
        render_as_batch=True,  # SQLite alters a table by copying it
    )
    with context.begin_transaction():
        context.run_migrations()


def run_alone() -> None:
    """For Alembic's own command line: `alembic -x url=sqlite:///hub.db revision --autogenerate`."""
    url = context.get_x_argument(as_dictionary=True).get("url", "sqlite:///ciar-hub/hub.db")
    database = Database(url)
    try:
        with database.write() as connection:
            run(connection)
    finally:
        database.close()


given = context.config.attributes.get("connection")
if given is None:
    run_alone()
else:
    run(given)

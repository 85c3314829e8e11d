"""Fewer bytes a picture on PostgreSQL: counts of a picture have 32 bits, ids a hash index.

Nothing of a SQLite database changes but what later releases may write into it.
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_COUNTS = (
    "tokens",
    "prefix",
    "local",
    "verified",
    "corrected",
    "unverified",
    "wasted",
    "forwards",
    "round_trips",
    "retries",
    "bytes_up",
    "bytes_down",
)
_MOST = (1 << 31) - 1


def upgrade() -> None:
    """Makes counts shorter, and the index of ids a hash."""
    if op.get_bind().dialect.name != "postgresql":
        return
    # One statement, which writes every row once.
    shorter = (f"ALTER {name} TYPE INTEGER USING LEAST({name}, {_MOST})" for name in _COUNTS)
    op.execute(f"ALTER TABLE generation {', '.join(shorter)}")
    # A random id's 32 digits in a tree take half as much again as a hash of them.
    op.drop_index("ix_generation_generation_id", "generation")
    op.create_index(
        "ix_generation_generation_id", "generation", ["generation_id"], postgresql_using="hash"
    )


def downgrade() -> None:
    """Refuses: an earlier release cannot read what this one writes.

    Raises:
        NotImplementedError: Always; a backup is the way back.
    """
    raise NotImplementedError("restore the backup that was made before the upgrade")

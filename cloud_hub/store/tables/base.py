"""What all tables share: how moments are kept, what a Python type is, how constraints are named."""

import re
import struct
import zlib
from datetime import UTC, datetime
from typing import Any

import numpy as np
from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    String,
    TypeDecorator,
)
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeEngine


class UtcDateTime(TypeDecorator[datetime]):
    """A moment; stored in UTC, read as an aware datetime on every database."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuses a moment without a zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a moment in the database needs its time zone")
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, _: Dialect) -> datetime | None:
        """Gives SQLite's moments the zone they were stored in."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Deflated(TypeDecorator[bytes]):
    """An array of bytes, as raw deflate (RFC 1951) in the database; an empty one stays empty.

    Neighbouring tokens repeat a byte at most, so the strategy looks for runs and nothing else.
    """

    impl = LargeBinary
    cache_ok = True

    @property
    def python_type(self) -> type[bytes]:
        """What readers get."""
        return bytes

    def process_bind_param(self, value: bytes | None, _: Dialect) -> bytes | None:
        """Packs an array."""
        return deflated(value) if value else value

    def process_result_value(self, value: bytes | None, _: Dialect) -> bytes | None:
        """Unpacks it."""
        return zlib.decompress(value, wbits=_RAW) if value else value


class Sparse(Deflated):
    """An array of bytes of which many are 0: which ones are not, and those alone.

    `SPARSE`, the number of bytes (u32, little-endian), a bit each, and the bytes that are not 0.
    Deflate takes half as much again for confidences: it spells out a code for bytes that are
    nearly all different. It is used where nearly none or most are not 0, and may always be there.
    """

    cache_ok = True

    def process_bind_param(self, value: bytes | None, _: Dialect) -> bytes | None:
        """Packs an array."""
        if not value or not len(value) // 16 < len(value) - value.count(0) <= len(value) // 2:
            return super().process_bind_param(value, _)
        array = np.frombuffer(value, np.uint8)
        head = _SPARSE_HEAD.pack(SPARSE, len(value))
        return head + np.packbits(array != 0).tobytes() + value.replace(b"\0", b"")

    def process_result_value(self, value: bytes | None, _: Dialect) -> bytes | None:
        """Unpacks it."""
        if not value or value[0] != SPARSE:
            return super().process_result_value(value, _)
        _mark, count = _SPARSE_HEAD.unpack_from(value)
        bits = np.frombuffer(value, np.uint8, -(-count // 8), _SPARSE_HEAD.size)
        array = np.unpackbits(bits, count=count)
        array[array != 0] = np.frombuffer(value, np.uint8, offset=_SPARSE_HEAD.size + len(bits))
        return array.tobytes()


class Hex(TypeDecorator[str]):
    """A text that is nearly always 32 or 64 hexadecimal digits: PostgreSQL keeps their bytes.

    Another text is kept as UTF-8, with a NUL before it where it would be taken for such bytes.
    """

    impl = LargeBinary
    cache_ok = True

    @property
    def python_type(self) -> type[str]:
        """What readers get."""
        return str

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """SQLite keeps the text, which whoever opens the file can read."""
        return dialect.type_descriptor(String(64) if dialect.name == "sqlite" else LargeBinary())

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | bytes | None:
        """Packs a text."""
        if value is None or dialect.name == "sqlite":
            return value
        if _HEX(value):
            return bytes.fromhex(value)
        packed = value.encode()
        return b"\0" + packed if len(packed) in _HASHES else packed

    def process_result_value(self, value: str | bytes | None, _: Dialect) -> str | None:
        """Unpacks it."""
        if value is None or isinstance(value, str):
            return value
        return value.hex() if len(value) in _HASHES else value.lstrip(b"\0").decode()


def shown_hex(column: str) -> str:
    """The text of a `Hex` column in PostgreSQL's SQL."""
    lengths = ", ".join(map(str, _HASHES))
    text = f"convert_from(btrim({column}, '\\x00'), 'UTF8')"
    return f"CASE WHEN length({column}) IN ({lengths}) THEN encode({column}, 'hex') ELSE {text} END"


def deflated(array: bytes) -> bytes:
    """An array as `Deflated` stores it."""
    packer = zlib.compressobj(wbits=_SMALL, memLevel=5, strategy=zlib.Z_RLE)
    return packer.compress(array) + packer.flush()


SPARSE = 0xFF  # no deflate begins with it: its first block would be of a kind that there is not
_SPARSE_HEAD = struct.Struct("<BI")
_RAW = -15  # no header, no check sum: the database has its own
# Runs need no window of 32 KiB, whose memory costs more time than the array's few hundred bytes.
_SMALL = -9

_HASHES = (16, 32)  # bytes
_HEX = re.compile("[0-9a-f]{32}|[0-9a-f]{64}").fullmatch

# Of one picture; SQLite keeps any number as short as it is.
COUNT = Integer().with_variant(BigInteger(), "sqlite")
# SQLite counts rows by its INTEGER only, which has 64 bits too.
ROW_NUMBER = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    """Names every constraint, so that a migration can name it too."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it from the class
        datetime: UtcDateTime(),
        float: Double(),
        int: BigInteger(),
        bytes: LargeBinary(),
        dict[str, Any]: JSON(),
    }

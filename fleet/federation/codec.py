"""Flower's records to bytes and back, by its public classes only: no pickle, no protobuf.

One msgpack map: record name to its kind ("arrays", "metrics" or "config") and its entries. An
array is its dtype, its shape and its bytes, little-endian, row by row.
"""

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fleet.errors import ProtocolError

DTYPES = ("<f2", "<f4", "<f8")
MAX_DIMENSIONS = 4


def pack(content: RecordDict) -> bytes:
    """The records as bytes; the same records give the same bytes.

    Raises:
        ProtocolError: An array is of a type that does not travel.
    """
    packed: bytes = msgpack.packb({name: _packed(record) for name, record in content.items()})
    return packed


def unpack(data: bytes) -> RecordDict:
    """The records in `data`.

    Raises:
        ProtocolError: The bytes are not records, or an array is not what it says.
    """
    try:
        found = msgpack.unpackb(data, strict_map_key=True)
        return RecordDict({name: _unpacked(*entry) for name, entry in found.items()})
    except ProtocolError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
        raise ProtocolError(f"not records of a round: {error}") from error


def digest(data: bytes) -> str:
    """What a body is called: the SHA-256 of its bytes."""
    return hashlib.sha256(data).hexdigest()


def to_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Named arrays as Flower carries them."""
    return ArrayRecord(
        {name: Array(np.asarray(value, order="C")) for name, value in arrays.items()}
    )


def from_record(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Flower's arrays by name."""
    return {name: values_of(value) for name, value in record.items()}


def values_of(array: Array) -> NDArray[Any]:
    """What `array.numpy()` returns, safe in many threads at once.

    Flower keeps the bytes of a .npy file, whose header numpy reads with Python's parser; before
    CPython 3.11.8 that raises SystemError when two threads do it (python/cpython#106905). Type and
    shape stand in the array too, so the header is read only of what is laid out by columns.
    """
    size = math.prod(array.shape) * np.dtype(array.dtype).itemsize
    start = len(array.data) - size
    if start < 0 or b"'fortran_order': False" not in array.data[:start]:
        return array.numpy()
    return np.frombuffer(array.data, array.dtype, offset=start).reshape(array.shape)


def _packed(record: object) -> tuple[str, Any]:
    match record:
        case ArrayRecord():
            return "arrays", {name: _pack_array(value) for name, value in record.items()}
        case MetricRecord():
            return "metrics", dict(record.items())
        case ConfigRecord():
            return "config", dict(record.items())
        case _:
            raise ProtocolError(f"{type(record).__name__} does not travel")


def _pack_array(array: Array) -> tuple[str, list[int], bytes]:
    values = values_of(array)
    dtype = values.dtype.newbyteorder("<")
    if dtype.str not in DTYPES:
        raise ProtocolError(f"an array of {values.dtype} does not travel")
    return dtype.str, list(values.shape), values.astype(dtype, copy=False).tobytes()


def _unpacked(kind: str, entries: Mapping[str, Any]) -> ArrayRecord | MetricRecord | ConfigRecord:
    match kind:
        case "arrays":
            return ArrayRecord({name: Array(_array(*entry)) for name, entry in entries.items()})
        case "metrics":
            return MetricRecord(dict(entries))
        case "config":
            return ConfigRecord(dict(entries))
        case _:
            raise ProtocolError(f"a record of kind {kind!r}")


def _array(dtype: str, shape: list[int], data: bytes) -> NDArray[Any]:
    if dtype not in DTYPES or len(shape) > MAX_DIMENSIONS:
        raise ProtocolError(f"an array of {dtype} in {len(shape)} dimensions")
    # reshape holds the shape against the number of bytes, so none can ask for memory.
    return np.frombuffer(data, dtype).reshape(shape)

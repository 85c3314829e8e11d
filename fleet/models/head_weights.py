"""The weights of an interval head as plain arrays: read from a bundle's graph, put into it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet.errors import BundleError, InvalidInputError

Floats = NDArray[np.float32]

_ARRAYS = ("center", "radius_down", "radius_up", "radius_bias", "center_bias")
_OFTEN_NONE = _ARRAYS[-1]


@dataclass(frozen=True, slots=True, eq=False)
class HeadWeights:
    """An interval head: center logits W·h + c, radii softplus(U·(D·h) + b).

    Attributes:
        center: W [V, D].
        radius_down: D [R, D], or [0, D] where the radius has a full matrix.
        radius_up: U [V, R], or [V, D].
        radius_bias: b [V].
        center_bias: c [V], or [0] where the output layer has none.
    """

    center: Floats
    radius_down: Floats
    radius_up: Floats
    radius_bias: Floats
    center_bias: Floats = field(default_factory=lambda: np.zeros(0, np.float32))

    def __post_init__(self) -> None:
        codes, dim = self.center.shape
        narrow = len(self.radius_down) or dim
        wanted = ((len(self.radius_down), dim), (codes, narrow), (codes,))
        found = (self.radius_down.shape, self.radius_up.shape, self.radius_bias.shape)
        if found != wanted:
            raise InvalidInputError(f"radius weights of shapes {found}, not {wanted}")
        if self.center_bias.shape not in ((0,), (codes,)):
            raise InvalidInputError(f"a center bias of {self.center_bias.shape}, not {(codes,)}")

    @property
    def vocab_size(self) -> int:
        """The number of codes."""
        return int(self.center.shape[0])

    @property
    def dim(self) -> int:
        """The width of the hidden state."""
        return int(self.center.shape[1])

    @property
    def version(self) -> str:
        """A hash of the weights: both sides of a round must hold the same."""
        digest = hashlib.sha256()
        for name in _ARRAYS:
            digest.update(getattr(self, name).astype("<f4").tobytes())
        return digest.hexdigest()[:16]

    def save(self, path: Path) -> None:
        """Writes the arrays beside their place and moves them there."""
        partial = path.with_name(path.name + ".partial")
        with partial.open("wb") as stream:
            stream.write(self.to_bytes())
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> "HeadWeights":
        """Reads what `save` wrote.

        Raises:
            InvalidInputError: The file is missing or not a head's.
        """
        try:
            return cls.from_bytes(path.read_bytes())
        except (OSError, InvalidInputError) as error:
            raise InvalidInputError(f"{path} does not hold the weights of a head") from error

    def to_bytes(self) -> bytes:
        """The arrays as an npz."""
        stream = BytesIO()
        np.savez(stream, **{name: getattr(self, name) for name in _ARRAYS})
        return stream.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> "HeadWeights":
        """Reads what `to_bytes` gave.

        Raises:
            InvalidInputError: It is something else.
        """
        try:
            with np.load(BytesIO(data), allow_pickle=False) as arrays:
                names = [name for name in _ARRAYS if name != _OFTEN_NONE or name in arrays]
                return cls(*(arrays[name].astype(np.float32) for name in names))
        except (OSError, KeyError, ValueError) as error:
            raise InvalidInputError("these are not the weights of a head") from error


def head_of(graph: bytes) -> HeadWeights:
    """The head inside a bundle's step graph.

    Raises:
        BundleError: The graph has no head that can be read.
    """
    found = _initializers(_parse(graph))
    try:
        center = found["head.center.weight"]
        down = found.get("head.radius_down.weight", np.zeros((0, center.shape[1]), np.float32))
        up, bias = found["head.radius_up.weight"], found["head.radius_up.bias"]
        center_bias = found.get("head.center.bias", np.zeros(0, np.float32))
        return HeadWeights(center, down, up, bias, center_bias)
    except KeyError as error:
        raise BundleError(f"the step graph has no {error.args[0]}: export it again") from error


def with_head(graph: bytes, head: HeadWeights) -> bytes:
    """The same step graph with another head of the same shape.

    Raises:
        BundleError: The shapes differ.
    """
    from onnx import numpy_helper

    model = _parse(graph)
    new: Mapping[str, Floats] = {
        "head.center.weight": head.center,
        "head.radius_down.weight": head.radius_down,
        "head.radius_up.weight": head.radius_up,
        "head.radius_up.bias": head.radius_bias,
    }
    for each in model.graph.initializer:
        if each.name in new:
            if tuple(each.dims) != new[each.name].shape:
                raise BundleError(
                    f"{each.name} is {tuple(each.dims)} in the graph, not {new[each.name].shape}"
                )
            each.CopyFrom(numpy_helper.from_array(new[each.name], each.name))
    content: bytes = model.SerializeToString()
    return content


def _parse(graph: bytes) -> Any:
    import onnx

    try:
        return onnx.load_from_string(graph)
    except Exception as error:  # protobuf raises errors of its own
        raise BundleError("the step graph cannot be read") from error


def _initializers(model: Any) -> dict[str, NDArray[Any]]:
    from onnx import numpy_helper

    return {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}

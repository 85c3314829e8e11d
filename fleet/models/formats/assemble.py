"""Token models from checked weights, without a second copy of them."""

from pathlib import Path

import torch

from fleet.errors import FleetError, InvalidInputError
from fleet.models.checkpoint import check_weights
from fleet.models.formats.files import Weights
from fleet.models.transformer import Transformer, TransformerConfig, rotation_of


def assemble(
    path: Path, kind: str, config: TransformerConfig, weights: Weights, dtype: torch.dtype
) -> Transformer:
    """Return a transformer that holds the weights themselves, cast to `dtype` where they differ.

    Rotary tables are fp32 whatever the weights are.

    Raises:
        InvalidInputError: The weights are not all and only those of such a model; the sentence
            names `path`, `kind` and the difference.
    """
    with torch.device("meta"):
        model = Transformer(config)
    try:
        check_weights(model, weights)
    except FleetError as error:
        raise InvalidInputError(f"{path} is no {kind} model: {error}") from error
    model.load_state_dict({name: w.to(dtype) for name, w in weights.items()}, assign=True)
    model.rotation = rotation_of(config)
    return model.eval().requires_grad_(False)


def layer_count(weights: Weights) -> int:
    """Return the number of layers that weights of LlamaGen's names have."""
    numbers = [int(name.split(".")[1]) for name in weights if name.startswith("layers.")]
    return 1 + max(numbers, default=-1)


def matrix_shape(path: Path, kind: str, weights: Weights, name: str) -> tuple[int, int]:
    """Return rows and columns of a matrix.

    Raises:
        InvalidInputError: There is none of this name.
    """
    if name not in weights or weights[name].ndim != 2:
        have = ", ".join(list(weights)[:3])
        raise InvalidInputError(
            f"{path} is no {kind} model: it has no matrix {name}, but {len(weights)} others"
            f" such as {have}"
        )
    rows, columns = weights[name].shape
    return rows, columns

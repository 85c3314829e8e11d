"""Models that people bring: added as a folder that points at their files, and then served."""

from dataclasses import dataclass
from pathlib import Path

from fleet.errors import InvalidInputError
from fleet.models.caption_features import T5Encoder, write_feature_file
from fleet.models.formats.files import read_weights
from fleet.models.formats.llamagen import grid_of, size_name
from fleet.models.image_tokenizer import ImageTokenizer
from fleet.models.linked import captions_of, read_tokenizer, read_transformer
from fleet.models.linked_config import (
    CaptionSource,
    DtypeName,
    FileStamp,
    Kind,
    LinkedConfig,
)
from fleet.models.spans import SpanEngine
from fleet.models.transformer import Transformer, TransformerConfig

MODELS_FOLDER = "models"

_MIB = 1 << 20
_LARGEST_GRID = 64


@dataclass(frozen=True, slots=True)
class Addition:
    """A model as a person names it."""

    weights: Path
    tokenizer: Path
    grid: int | None
    heads: int | None
    dtype: DtypeName
    captions: CaptionSource | None
    name: str | None
    kind: Kind = "llamagen"
    prompt_length: int | None = None


@dataclass(frozen=True, slots=True)
class Added:
    """A model that can be served, and what is to be said of it: (what, text)."""

    folder: Path
    facts: list[tuple[str, str]]


def add_model(order: Addition, data_dir: Path) -> Added:
    """Checks the files of a model and writes the folder that `serve` takes.

    Raises:
        InvalidInputError: A file cannot be read or is not what it should be, the two do not go
            together, or nobody says what the files do not show.
        OutputError: The folder cannot be written.
    """
    # Whether they are weights at all comes before what their name says of them.
    read_weights(order.weights)
    tokenizer = read_tokenizer(order.kind, order.tokenizer)
    pixels = tokenizer.config.downsampling
    grid = _grid(order, pixels)
    config = LinkedConfig(
        kind=order.kind,
        family=order.name or order.kind,
        weights=FileStamp.at(order.weights),
        tokenizer=FileStamp.at(order.tokenizer),
        grid=grid,
        heads=order.heads,
        dtype=order.dtype,
        captions=order.captions
        and order.captions.model_copy(update={"path": order.captions.path.resolve()}),
        prompt_length=order.prompt_length,
    )
    model = read_transformer(config)
    _check_codes(order, model, tokenizer)
    name = order.name or _name(order.kind, model, grid * pixels)
    folder = data_dir.expanduser() / MODELS_FOLDER / name
    captions_of(config, model.config, folder)
    # The files are hashed last, when all else is known to be right: they are large.
    stamps = {"weights": FileStamp.of(order.weights), "tokenizer": FileStamp.of(order.tokenizer)}
    config = config.model_copy(update={"family": name, **stamps})
    config.write(folder)
    return Added(folder, _facts(config, model, tokenizer))


def add_captions(captions: Path, text: Path, output: Path, length: int) -> int:
    """Adds the features of a text file's captions, one a line, to a file of features.

    Returns:
        How many captions the file holds now.

    Raises:
        InvalidInputError: The captions cannot be read, or there is no T5 in the folder `text`.
        OutputError: The file cannot be written.
    """
    try:
        lines = captions.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{captions} cannot be read as text: {error}") from error
    wanted = [line for line in lines if line.strip()]
    return write_feature_file(output, wanted, T5Encoder(text, length))


def _grid(order: Addition, pixels: int) -> int:
    grid = order.grid or 0
    if order.kind == "llamagen":
        grid = grid_of(order.weights, pixels, order.grid)
    if not 0 < grid <= _LARGEST_GRID:
        raise InvalidInputError(
            f"with {order.tokenizer.name}, of {pixels} pixels a token, pictures would have {grid} x"
            f" {grid} tokens; {_LARGEST_GRID} x {_LARGEST_GRID} is the limit: is it the model's?"
        )
    return grid


def _check_codes(order: Addition, model: Transformer, tokenizer: ImageTokenizer) -> None:
    codes, words = tokenizer.config.codebook_size, model.config.vocab_size
    if codes != words:
        raise InvalidInputError(
            f"the model draws from {words} codes, but {order.tokenizer.name} has {codes}:"
            " they do not belong together"
        )


def _name(kind: Kind, model: Transformer, pixels: int) -> str:
    sizes = model.config
    if kind == "llamagen":
        kind_of = "c2i" if sizes.n_class else "t2i"
        return "-".join(filter(None, ["llamagen", kind_of, size_name(sizes), str(pixels)]))
    return f"{kind}-{sizes.n_layer}x{sizes.dim}-{pixels}"


def _facts(
    config: LinkedConfig, model: Transformer, tokenizer: ImageTokenizer
) -> list[tuple[str, str]]:
    sizes, codes, weights = model.config, tokenizer.config, config.weights
    parameters = sum(weight.numel() for weight in model.parameters())
    stored = {str(w.dtype).removeprefix("torch.") for w in read_weights(weights.path).values()}
    row = SpanEngine(model).new_cache(1)
    cells = row.keys.nbytes + row.values.nbytes
    grid, pixels = config.grid, codes.downsampling
    facts = {
        "weights": f"{weights.path}, {weights.size:,} bytes of {', '.join(sorted(stored))}",
        "precision": f"{config.dtype}, {_mib(parameters * model.output.weight.itemsize)}",
        "parameters": f"{parameters:,} in {sizes.n_layer} layers of {sizes.dim}",
        "heads": f"{sizes.n_head} of {sizes.head_dim}",
        "condition": _condition(sizes),
        "grid": f"{grid} x {grid} tokens: pictures of {grid * pixels} x {grid * pixels} pixels",
        "tokenizer": f"{codes.codebook_size} codes of {codes.code_width}, {pixels} pixels a token",
        "a session": f"{_mib(2 * cells)} of KV cache with guidance",
    }
    if not sizes.has_prompt and sizes.caption_length > 1:
        kept = 2 * (cells + (sizes.caption_length - 1) * cells // row.values.shape[3])
        facts[""] = f"({_mib(kept)} if all positions of the condition were kept)"
    return list((facts | {"version": config.version}).items())


def _condition(sizes: TransformerConfig) -> str:
    if sizes.has_prompt:
        return f"prompts of up to {sizes.caption_length} of {sizes.n_word} text tokens"
    if sizes.n_class:
        return f"{sizes.n_class} classes: the caption is the number of one"
    return f"captions of {sizes.caption_length} tokens as T5 features of {sizes.caption_dim}"


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f} MiB"

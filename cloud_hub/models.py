"""Models that people bring: added as a folder that points at their files, and then served."""

from dataclasses import dataclass
from pathlib import Path

from fleet.errors import InvalidInputError
from fleet.models.caption_features import T5Encoder, write_feature_file
from fleet.models.formats.files import read_weights
from fleet.models.formats.llamagen import grid_of, load_llamagen, size_name
from fleet.models.formats.vq import load_vq
from fleet.models.image_tokenizer import ImageTokenizer
from fleet.models.linked import (
    DTYPES,
    CaptionSource,
    DtypeName,
    FileStamp,
    LinkedConfig,
    captions_of,
)
from fleet.models.spans import SpanEngine
from fleet.models.transformer import Transformer

MODELS_FOLDER = "models"

_MIB = 1 << 20


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


@dataclass(frozen=True, slots=True)
class Added:
    """A model that can be served, and what is to be said of it: (what, text)."""

    folder: Path
    facts: list[tuple[str, str]]


def add_llamagen(order: Addition, data_dir: Path) -> Added:
    """Checks the files of a LlamaGen model and writes the folder that `serve` takes.

    Raises:
        InvalidInputError: A file cannot be read or is not what it should be, the two do not go
            together, or nobody says what the files do not show.
        OutputError: The folder cannot be written.
    """
    tokenizer = load_vq(order.tokenizer, unit_codes=True)
    grid = grid_of(order.weights, tokenizer.config.downsampling, order.grid)
    model = load_llamagen(order.weights, grid, dtype=DTYPES[order.dtype], heads=order.heads)
    codes, words = tokenizer.config.codebook_size, model.config.vocab_size
    if codes != words:
        raise InvalidInputError(
            f"the model draws from {words} codes, but {order.tokenizer.name} has {codes}:"
            " they do not belong together"
        )
    name = order.name or _name(model, grid * tokenizer.config.downsampling)
    folder = data_dir.expanduser() / MODELS_FOLDER / name
    captions_of(model.config, order.captions, folder)
    config = LinkedConfig(
        family=name,
        weights=FileStamp.of(order.weights),
        tokenizer=FileStamp.of(order.tokenizer),
        grid=grid,
        heads=order.heads,
        dtype=order.dtype,
        captions=order.captions
        and order.captions.model_copy(update={"path": order.captions.path.resolve()}),
    )
    config.write(folder)
    return Added(folder, _facts(order, config, model, tokenizer))


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


def _name(model: Transformer, pixels: int) -> str:
    kind = "c2i" if model.config.n_class else "t2i"
    return "-".join(filter(None, ["llamagen", kind, size_name(model.config), str(pixels)]))


def _facts(
    order: Addition, config: LinkedConfig, model: Transformer, tokenizer: ImageTokenizer
) -> list[tuple[str, str]]:
    sizes, codes = model.config, tokenizer.config
    parameters = sum(weight.numel() for weight in model.parameters())
    stored = {str(w.dtype).removeprefix("torch.") for w in read_weights(order.weights).values()}
    row = SpanEngine(model).new_cache(1).cells
    kept = 2 * (row.nbytes + (sizes.caption_length - 1) * row.nbytes // row.shape[4])
    grid, pixels = config.grid, codes.downsampling
    classes = f"{sizes.n_class} classes: the caption is the number of one"
    captions = f"captions of {sizes.caption_length} tokens as T5 features of {sizes.caption_dim}"
    weights = config.weights
    facts = {
        "weights": f"{weights.path}, {weights.size:,} bytes of {', '.join(sorted(stored))}",
        "precision": f"{config.dtype}, {_mib(parameters * model.output.weight.itemsize)}",
        "parameters": f"{parameters:,} in {sizes.n_layer} layers of {sizes.dim}",
        "heads": f"{sizes.n_head} of {sizes.head_dim}",
        "condition": classes if sizes.n_class else captions,
        "grid": f"{grid} x {grid} tokens: pictures of {grid * pixels} x {grid * pixels} pixels",
        "tokenizer": f"{codes.codebook_size} codes of {codes.code_width}, {pixels} pixels a token",
        "a session": f"{_mib(2 * row.nbytes)} of KV cache with guidance",
        "": f"({_mib(kept)} if all positions of the condition were kept)",
        "version": config.version,
    }
    return list(facts.items())


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f} MiB"

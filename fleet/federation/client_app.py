"""The node's side of a round, as a plain Flower ClientApp: `app`.

The node's folder (`folder` in the node's configuration; in a simulation `folder` of the run's,
with one folder a partition in it) holds its samples and its head, `head.npz`. Three kinds of
message: a query (what the node could do), train and evaluate. Weights come and go in half
precision, as changes of the node's own head (`fleet.federation.head`).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fleet.errors import InvalidInputError
from fleet.federation import codec
from fleet.federation.samples import SampleRing
from fleet.models.head_weights import HeadWeights

if TYPE_CHECKING:
    from fleet.federation.head import HeadChange

HEAD_FILE = "head.npz"
CONFIG, ARRAYS, METRICS, ABOUT = "config", "arrays", "metrics", "about"

app = ClientApp()


def node_folder(context: Context) -> Path:
    """The folder of the node that the context belongs to.

    Raises:
        InvalidInputError: Neither node nor run names one.
    """
    if "folder" in context.node_config:
        return Path(str(context.node_config["folder"]))
    if "folder" in context.run_config:
        return Path(str(context.run_config["folder"])) / str(context.node_config["partition-id"])
    raise InvalidInputError("neither the node's nor the run's configuration names a folder")


@app.query()
def query(message: Message, context: Context) -> Message:
    """Says what the node could train: its shape and how many samples it has."""
    folder = node_folder(context)
    ring, head = SampleRing.open(folder), HeadWeights.load(folder / HEAD_FILE)
    training, held_out = ring.read().split(_cloud(message))
    about: dict[str, Any] = {
        "backbone": ring.shape.backbone,
        "codes": head.vocab_size,
        "dim": head.dim,
        "radius-rank": len(head.radius_down),
        "head": head.version,
    }
    counts: dict[str, Any] = {"samples": len(training), "held-out": len(held_out)}
    content = RecordDict({ABOUT: ConfigRecord(about), METRICS: MetricRecord(counts)})
    return Message(content, reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Trains from the round's change on this node's samples and returns the node's own change."""
    from fleet.federation import train as training

    config = message.content.config_records[CONFIG]
    folder = node_folder(context)
    samples, held_out = SampleRing.open(folder).read().split(_cloud(message))
    samples = samples[-int(_number(config, "most-samples")) :]
    change = _change(folder, message)
    before = training.evaluate(change, held_out)
    seed = [int(_number(config, "seed")), int(_number(config, "server-round"))]
    recipe = training.Recipe(
        loss="distillation" if config["loss"] == "distillation" else "inter-dro",
        steps=int(_number(config, "steps")),
        batch=int(_number(config, "batch")),
        rate=_number(config, "rate"),
        proximal=_number(config, "proximal-mu") if "proximal-mu" in config else 0.0,
        seed=int(
            np.random.SeedSequence([*seed, message.metadata.dst_node_id]).generate_state(1)[0]
        ),
    )
    training.train(change, samples, recipe)
    after = training.evaluate(change, held_out)
    metrics: dict[str, Any] = {
        "num-examples": len(samples),
        "loss-before": before.loss,
        "loss-error": before.loss_error,
        "loss-after": after.loss,
        "tv-before": before.tv,
        "tv-after": after.tv,
    }
    content = RecordDict({ARRAYS: codec.to_record(change.arrays()), METRICS: MetricRecord(metrics)})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Validates a change on what this node has held out."""
    from fleet.federation import train as training
    from fleet.federation.calibrate import needed_stretch

    folder = node_folder(context)
    _, held_out = SampleRing.open(folder).read().split(_cloud(message))
    change = _change(folder, message)
    figures = training.evaluate(change, held_out)
    metrics: dict[str, Any] = {
        "num-examples": len(held_out),
        "loss": figures.loss,
        "tv": figures.tv,
        "match": figures.match,
        "covered": figures.covered,
        "stretch": needed_stretch(change, held_out),
    }
    return Message(RecordDict({METRICS: MetricRecord(metrics)}), reply_to=message)


def _change(folder: Path, message: Message) -> "HeadChange":
    # torch takes a second to import; a query needs none.
    from fleet.federation.head import HeadChange

    head = HeadWeights.load(folder / HEAD_FILE)
    config = message.content.config_records[CONFIG]
    if (wanted := str(config["head"])) != head.version:
        raise InvalidInputError(f"the round changes head {wanted}, this is {head.version}")
    directions: NDArray[np.float32] = np.frombuffer(config["directions"], "<f4")  # type: ignore[arg-type]
    change = codec.from_record(message.content.array_records[ARRAYS])
    return HeadChange(head, directions.reshape(-1, head.dim).copy(), change)


def _cloud(message: Message) -> int:
    return int(message.content.config_records[CONFIG].get("cloud", 0))  # type: ignore[arg-type]


def _number(config: Any, name: str) -> float:
    return float(config[name])

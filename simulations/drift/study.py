"""The experiment from a pair of models to its figures; every step that is on disk is not redone."""

import json
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fleet.errors import InvalidInputError, OutputError
from fleet.federation.ledger import FolderLedger
from fleet.models.checkpoint import load_tokenizer, load_transformer
from fleet.models.head_weights import HeadWeights
from fleet.training.budget import progress_bar
from fleet.training.examples import load_examples
from fleet.training.pictures import load_pictures
from simulations.drift.clouds import train_further
from simulations.drift.figures import DeviceFigures, at_same_questions, device_figures
from simulations.drift.heads import head_of, with_head
from simulations.drift.learning import keep_samples, run_rounds, train_centrally
from simulations.drift.looks import in_another_look
from simulations.drift.order import CONDITIONS, LEARNED, Arm, Condition, Order
from simulations.drift.seen import Seen, States, draw_and_look
from simulations.drift.tastes import Taste, joined, tastes
from simulations.evaluation.family import Family, file_version, load_family, models_version

SETTINGS = "settings.json"
BATCH = 36  # pictures drawn together
_HEAD = "head.npz"


@dataclass(frozen=True, slots=True)
class Folder:
    """Where an arm keeps what it drew and learned."""

    path: Path

    def seen(self, condition: Condition, device: int) -> Path:
        """What was seen under a condition on a device's pictures; both arms begin alike."""
        if condition == "before":
            return self.path.parent / condition / f"{device:04}.npz"
        return self.path / condition.replace(" ", "-") / f"{device:04}.npz"

    def states(self, device: int) -> Path:
        """The states of the drifted fleet's pictures, by which every head is held."""
        return self.path / "states" / f"{device:04}.npz"

    def node(self, device: int) -> Path:
        """A device's samples and head, as an agent keeps them."""
        return self.path / "nodes" / f"{device:04}"

    def head(self, condition: Condition) -> Path:
        """What was learned under a condition."""
        return self.path / f"{condition}.npz"

    def rounds(self, condition: Condition) -> FolderLedger:
        """The rounds of a condition."""
        return FolderLedger(self.path / f"{condition}-rounds")


@dataclass(frozen=True, slots=True)
class Step:
    """One piece of work of a worker process, and the file that says it is done."""

    what: str
    work: Callable[[], None]
    done: Path


class Study:
    """An order at work."""

    def __init__(self, order: Order) -> None:
        """Raises InvalidInputError if the folder holds another experiment."""
        self.order = order
        _settle(order)
        size = order.size
        pictures = load_pictures(order.work)
        self.tastes = tastes(pictures, size.devices, size.pictures, size.measured, order.seed)
        self.folders = {arm: Folder(order.out / arm) for arm in order.arms}

    def run(self) -> list[DeviceFigures]:
        """Draws, learns and draws again; the figures."""
        order = self.order
        _new_cloud(order)
        groups = list(self._groups())
        with _workers(order.processes) as run:
            steps = [
                _draw(self, arm, condition, group)
                for arm in order.arms
                for condition in CONDITIONS[:2]
                for group in groups
            ]
            devices = range(order.size.devices)
            steps += [_sample(self, arm, device) for arm in order.arms for device in devices]
            run("pictures before and after, and to learn from", steps)
            steps = [_learn(self, arm, c) for arm in order.arms for c in LEARNED]
            run("rounds, and training in one place", steps)
            steps = [
                _draw(self, arm, condition, group)
                for arm in order.arms
                for condition in LEARNED
                for group in groups
            ]
            run("pictures with what was learned", steps)
        return [row for arm in order.arms for row in self._figures(arm)]

    def _groups(self) -> Iterator[tuple[int, ...]]:
        """Devices whose pictures are drawn together: a batch of few takes hardly less time."""
        size, each = self.order.size, max(BATCH // self.order.size.measured, 1)
        for start in range(0, size.devices, each):
            yield tuple(range(start, min(start + each, size.devices)))

    def _figures(self, arm: Arm) -> Iterator[DeviceFigures]:
        folder, start = self.folders[arm], HeadWeights.load(self.order.out / _HEAD)
        heads = {"before": start, "no rounds": start} | {
            condition: HeadWeights.load(folder.head(condition)) for condition in LEARNED
        }
        for device, taste in enumerate(self.tastes):
            asked = Seen.load(folder.seen("no rounds", device)).asked
            states = States.load(folder.states(device))
            for condition in CONDITIONS:
                same = at_same_questions(
                    asked, states, heads[condition], self.order.shipped.sampling
                )
                seen = Seen.load(folder.seen(condition, device))
                yield device_figures(arm, condition, device, taste.name, seen, same)

    def matches(self, arm: Arm, condition: Condition) -> NDArray[np.float64]:
        """The match of each picture of each device [D, P]."""
        paths = [self.folders[arm].seen(condition, device) for device in range(len(self.tastes))]
        return np.stack([Seen.load(path).match.mean(axis=1) for path in paths])


def curve(study: Study, arm: Arm, condition: Condition) -> list[float]:
    """The loss on the nodes' held-out samples, before the rounds and after each."""
    history = study.folders[arm].rounds(condition).history()
    known = [each.figures for each in history if "loss_before" in each.figures]
    if not known:
        return []
    kept = {each.number: each.outcome == "kept" for each in history}
    losses = [known[0]["loss_before"]]
    for each in history:
        after = each.figures.get("loss_after", losses[-1])
        losses.append(after if kept[each.number] else losses[-1])
    return losses


def _settle(order: Order) -> None:
    """Notes what the folder holds, or holds it against that."""
    settings = {
        "models": models_version(order.models),
        "cloud": file_version(order.cloud) if order.cloud else "",
        "shipped": asdict(order.shipped),
        "plan": asdict(order.plan),
        "size": asdict(order.size),
        "seed": order.seed,
    }
    path, text = order.out / SETTINGS, json.dumps(settings, indent=1) + "\n"
    try:
        order.out.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.read_text(encoding="utf-8") != text:
            raise InvalidInputError(
                f"{order.out} holds the experiment of other models or settings"
                f" ({SETTINGS}): name another folder"
            )
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{order.out} cannot be written: {error.strerror}") from error
    if not (order.out / _HEAD).exists():
        head_of(load_family(order.models)).save(order.out / _HEAD)


def _new_cloud(order: Order) -> None:
    path = _new_cloud_path(order)
    if path.exists():
        return
    start, examples = order.models / "cloud.pt", load_examples(order.work)
    if order.size.colour < 1:
        tokenizer = load_tokenizer(order.models / "tokenizer.pt")
        with progress_bar("pictures in another look") as bar:
            examples = in_another_look(examples, tokenizer, order.size.colour, bar)
    with progress_bar("new cloud model") as bar:
        train_further(start, path, examples, order.size, order.seed, bar)


def _new_cloud_path(order: Order) -> Path:
    return order.cloud or order.out / "cloud.pt"


# ── Steps, run in worker processes ────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Work:
    """Plain values that reach a worker process; calling it does the work there."""

    do: Callable[["_Work"], None]
    order: Order
    arm: Arm
    condition: Condition
    devices: tuple[int, ...] = ()
    tastes: tuple[Taste, ...] = ()

    def __call__(self) -> None:
        self.do(self)

    @property
    def folder(self) -> Folder:
        return Folder(self.order.out / self.arm)


def _draw(study: Study, arm: Arm, condition: Condition, group: tuple[int, ...]) -> Step:
    chosen = tuple(study.tastes[device] for device in group)
    work = _Work(_do_draw, study.order, arm, condition, group, chosen)
    return Step(f"{arm} {condition}", work, work.folder.seen(condition, group[-1]))


def _sample(study: Study, arm: Arm, device: int) -> Step:
    chosen = (study.tastes[device],)
    work = _Work(_do_sample, study.order, arm, "no rounds", (device,), chosen)
    return Step(f"{arm} samples", work, work.folder.node(device) / "done")


def _learn(study: Study, arm: Arm, condition: Condition) -> Step:
    work = _Work(_do_learn, study.order, arm, condition)
    return Step(f"{arm} {condition}", work, work.folder.head(condition))


def _do_draw(work: _Work) -> None:
    before = work.condition == "before"
    drifted = work.arm == "captions" and not before
    wishes = joined([t.measured_after if drifted else t.measured_before for t in work.tastes])
    family = _family(work.order, is_new=not before)
    if work.condition in LEARNED:
        family = with_head(family, HeadWeights.load(work.folder.head(work.condition)))
    keeps = work.condition == "no rounds"
    seen, states = draw_and_look(family, work.order.shipped.method, wishes, keeps_states=keeps)
    count = work.order.size.measured
    for index, device in enumerate(work.devices):  # the last one says that all are done
        part = slice(index * count, (index + 1) * count)
        if states is not None:
            states.rows(part).save(work.folder.states(device))
        seen.rows(part).save(work.folder.seen(work.condition, device))


def _do_sample(work: _Work) -> None:
    (taste,), (device,), order = work.tastes, work.devices, work.order
    folder, family = work.folder.node(device), _family(order, is_new=True)
    wishes = taste.learned_after if work.arm == "captions" else taste.learned_before
    seen, states = draw_and_look(family, order.shipped.method, wishes, keeps_states=True)
    assert states is not None
    share, backbone = order.size.law_share, models_version(order.models, ("device.pt",))
    count = keep_samples(folder, seen, states, share, head_of(family), backbone)
    (folder / "done").write_text(f"{count}\n", encoding="utf-8")


def _do_learn(work: _Work) -> None:
    order, folder, loss = work.order, work.folder, work.condition
    head = HeadWeights.load(order.out / _HEAD)
    nodes = [folder.node(device) for device in range(order.size.devices)]
    if loss == "central":
        train_centrally(nodes, head, order.plan).save(folder.head(loss))
        return
    plan = replace(order.plan, loss=loss)
    if loss == "distillation":
        plan = replace(plan, node_ball=0.0)  # plain: neither samples nor nodes that are worst
    run_rounds(folder.rounds(loss), nodes, head, plan).save(folder.head(loss))


@cache
def _old_family(models: Path) -> Family:
    return load_family(models)


@cache
def _new_family(models: Path, cloud: Path) -> Family:
    new = load_transformer(cloud)
    new.half().float()  # as a cloud model ships
    return replace(_old_family(models), cloud=new)


def _family(order: Order, *, is_new: bool) -> Family:
    """Loaded once a process."""
    if is_new:
        return _new_family(order.models, _new_cloud_path(order))
    return _old_family(order.models)


@contextmanager
def _workers(processes: int) -> Iterator[Callable[[str, Iterable[Step]], None]]:
    """What runs the steps of a stage whose files are missing, with a bar; one process is this one.

    Each computes in one thread, so that sums come in one order.
    """
    columns = (
        TextColumn("{task.description:<42}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[last]}"),
    )
    with ExitStack() as stack:
        pool = None
        if processes > 1:
            context = multiprocessing.get_context("spawn")
            made = ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,))
            pool = stack.enter_context(made)
        progress = stack.enter_context(Progress(*columns))

        def run(title: str, steps: Iterable[Step]) -> None:
            wanted = list({step.done: step for step in steps}.values())
            missing = [step for step in wanted if not step.done.exists()]
            done = len(wanted) - len(missing)
            task = progress.add_task(title, total=len(wanted), completed=done, last="")
            for step in _finished(pool, missing):
                progress.update(task, advance=1, last=step.what)

        yield run


def _finished(pool: ProcessPoolExecutor | None, steps: Iterable[Step]) -> Iterator[Step]:
    """The steps, each when it is done."""
    if pool is None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for step in steps:
                step.work()
                yield step
        finally:
            torch.set_num_threads(threads)
        return
    futures = {pool.submit(step.work): step for step in steps}
    try:
        for future in as_completed(futures):
            future.result()
            yield futures[future]
    finally:
        for future in futures:
            future.cancel()

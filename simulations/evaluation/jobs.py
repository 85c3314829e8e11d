"""Pictures drawn chunk by chunk in worker processes; a chunk that is on disk is not drawn again."""

import hashlib
import json
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from simulations.evaluation.captions import Assignment
from simulations.evaluation.decoder import decode
from simulations.evaluation.efficientnet import EfficientNetLite0, load_network, picture_features
from simulations.evaluation.family import Family, load_family, models_version
from simulations.evaluation.methods import Method

# The workers' allocator (glibc) keeps freed memory: giving it back and taking it again for every
# layer costs as much time as the layers. Read when a process starts.
_KEEP_MEMORY = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
CHUNK: Final = 40  # pictures
_FORMAT = 3  # of a chunk on disk; those of other formats are drawn anew


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """What one method drew: tokens, their stories, pictures and the pictures' features."""

    tokens: NDArray[np.uint16]  # [N, T]
    decisions: NDArray[np.uint8]  # [N, T]
    sent: NDArray[np.uint8]  # [N, T]
    score: NDArray[np.float32]  # [N, T]
    scores: NDArray[np.float32]  # [N, T, scores]
    drafts: NDArray[np.int32]  # [N, T], -1 where nobody looked
    own: NDArray[np.int32]  # [N, T], the cloud's, likewise
    pictures: NDArray[np.uint8]  # [N, side, side, 3]
    features: NDArray[np.float32]  # [N, 1280]

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Job:
    """One chunk of one method: captions with their seeds, and where the result goes."""

    method: Method
    captions: tuple[str, ...]
    seeds: tuple[int, ...]
    path: Path


class Studio:
    """Worker processes that hold a family, and the folder of chunks they have drawn."""

    def __init__(
        self, pool: ProcessPoolExecutor, work: Path, folder: Path, progress: Progress
    ) -> None:
        self._pool = pool
        self._work = work
        self._folder = folder
        self._progress = progress

    def draw(self, plan: Sequence[tuple[Method, int]], assignment: Assignment) -> list[Sample]:
        """For each (method, count) the sample of the assignment's first `count` captions."""
        jobs = [list(self._jobs(method, count, assignment)) for method, count in plan]
        missing = [job for group in jobs for job in group if not job.path.exists()]
        self._run(missing)
        return [_gather(group) for group in jobs]

    def features(self, pictures: NDArray[np.uint8], name: str) -> NDArray[np.float32]:
        """Features [N, 1280] of given pictures, kept in the folder by `name` for any family."""
        path = self._folder / f"{name}.npy"
        if not path.exists():
            parts = np.array_split(pictures, max(1, len(pictures) // CHUNK))
            task = self._progress.add_task(f"features of {name}", total=len(parts))
            done = []
            for part in self._pool.map(_features, parts):
                done.append(part)
                self._progress.advance(task)
            _save_array(path, np.concatenate(done))
        found: NDArray[np.float32] = np.load(path)
        return found

    def _jobs(self, method: Method, count: int, assignment: Assignment) -> Iterator[Job]:
        for start in range(0, count, CHUNK):
            end = min(start + CHUNK, count)
            captions, seeds = assignment.captions[start:end], assignment.seeds[start:end]
            version = models_version(self._work, method.models)
            folder = self._folder / f"{method.key}-{version}-{_FORMAT}"
            path = folder / f"{start:05}-{_digest(captions, seeds)}.npz"
            yield Job(method, tuple(captions), tuple(seeds), path)

    def _run(self, jobs: list[Job]) -> None:
        names = dict.fromkeys(job.method.name for job in jobs)
        counts = {name: sum(job.method.name == name for job in jobs) for name in names}
        tasks = {name: self._progress.add_task(name, total=counts[name]) for name in names}
        futures = {self._pool.submit(_draw, job, self._work): job for job in jobs}
        try:
            for future in as_completed(futures):
                future.result()
                self._progress.advance(tasks[futures[future].method.name])
        finally:
            for future in futures:
                future.cancel()


@contextmanager
def open_studio(work: Path, folder: Path, processes: int, threads: int) -> Iterator[Studio]:
    """Worker processes on the family in `work`, with a progress bar a method.

    Each method's chunks lie in a folder of its settings and of the models it needs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in _KEEP_MEMORY:
        os.environ.setdefault(name, str(1 << 32))
    columns = (
        TextColumn("{task.description:<30}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    pool = ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=torch.set_num_threads,
        initargs=(threads,),
    )
    with pool, Progress(*columns) as progress:
        yield Studio(pool, work, folder, progress)


def _digest(captions: list[str], seeds: list[int]) -> str:
    """Names what a chunk draws, apart from the method."""
    return hashlib.sha256(json.dumps([captions, seeds]).encode()).hexdigest()[:10]


# ── In a worker process ───────────────────────────────────────────────────────────────────


@cache
def _family(work: Path) -> Family:
    """Loaded once a process."""
    return load_family(work)


@cache
def _network() -> EfficientNetLite0:
    """Loaded once a process."""
    return load_network()


def _draw(job: Job, work: Path) -> None:
    family = _family(work)
    drawn = decode(family, job.method, list(job.captions), list(job.seeds))
    pictures = family.pictures(drawn.tokens)
    job.path.parent.mkdir(parents=True, exist_ok=True)
    partial = job.path.with_suffix(".partial.npz")
    np.savez_compressed(
        partial,
        tokens=drawn.tokens.astype(np.uint16),
        decisions=drawn.decisions,
        sent=drawn.sent,
        score=drawn.score,
        scores=drawn.scores,
        drafts=drawn.drafts,
        own=drawn.own,
        pictures=pictures,
        features=picture_features(_network(), pictures),
    )
    partial.replace(job.path)


def _features(pictures: NDArray[np.uint8]) -> NDArray[np.float32]:
    return picture_features(_network(), pictures)


def _gather(jobs: list[Job]) -> Sample:
    parts = [dict(np.load(job.path)) for job in jobs]
    return Sample(**{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def _save_array(path: Path, values: NDArray[np.float32]) -> None:
    partial = path.with_suffix(".partial.npy")
    np.save(partial, values)
    partial.replace(path)

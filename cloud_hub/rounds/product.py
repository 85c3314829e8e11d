"""What a run of rounds gives: the device bundle with the head that it trained, signed."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from cloud_hub.store import catalog
from cloud_hub.store import rounds as store
from cloud_hub.store.database import Database
from cloud_hub.store.rounds import DatabaseLedger
from fleet.errors import InvalidInputError, OutputError
from fleet.federation.head import changed, main_directions
from fleet.federation.plan import Plan
from fleet.federation.validate import last_stretch
from fleet.ids import ModelVersion
from fleet.models.bundle import PUBLIC_KEY, STEP_GRAPH, Bundle, write_bundle
from fleet.models.head_weights import head_of, with_head
from fleet.models.signing import write_public_key


@dataclass(frozen=True, slots=True)
class Published:
    """A model version in its folder."""

    version: ModelVersion
    folder: Path
    facts: Mapping[str, Any]


def publish(
    database: Database, run_id: str, base: Bundle, models: Path, private_key: Path
) -> Published:
    """Makes, signs and catalogues the bundle of a run, in a folder of its version below `models`.

    The same run and key give the same bytes, so publishing twice changes nothing.

    Raises:
        InvalidInputError: There is no such run, it kept no round, or it trained another head.
        BundleError: The key cannot be used.
        OutputError: The folder cannot be written.
    """
    now = datetime.now(UTC)
    with database.read() as connection:
        run, rounds = store.run_of(connection, run_id, now), store.rounds_of(connection, run_id)
    graph = base.read(STEP_GRAPH)
    head = head_of(graph)
    if head.version != run.head_version:
        raise InvalidInputError(
            f"run {run_id!r} trained head {run.head_version} of device {run.base_version}, and"
            f" {base.path} holds head {head.version}: name that bundle with --bundle"
        )
    last = DatabaseLedger(database, run_id, str).last()
    if last is None or not run.kept:
        raise InvalidInputError(f"run {run_id!r} has kept no round: there is nothing to publish")
    directions = main_directions(head, Plan.from_fields(run.plan).rank)
    trained = with_head(graph, changed(head, directions, last.change, last_stretch(rounds)))
    manifest = base.manifest
    files = {entry.name: base.read(entry.name) for entry in manifest.files}
    fields = manifest.model_dump(exclude={"format", "files", "device_version", "backbone"})
    cloud = run.plan.get("cloud") or manifest.cloud_version
    folder = _write(
        {**fields, "backbone": manifest.made_by, "cloud_version": cloud},
        {**files, STEP_GRAPH: trained},
        models,
        private_key,
    )
    version, facts = ModelVersion(folder.name), _facts(rounds, folder)
    parent = manifest.device_version
    made = catalog.Version(version, "device", manifest.family, parent, run_id, now, facts)
    with database.write() as connection:
        catalog.add(connection, made)
    return Published(version, folder, facts)


def _write(
    fields: Mapping[str, Any], files: Mapping[str, bytes], models: Path, private_key: Path
) -> Path:
    """The bundle's folder, called by its version; written beside it first, since that follows
    from the content."""
    try:
        models.mkdir(parents=True, exist_ok=True)
        draft = Path(mkdtemp(prefix=".draft-", dir=models))
    except OSError as error:
        raise OutputError(f"no model can be kept in {models}: {error.strerror}") from error
    try:
        manifest = write_bundle(draft, fields, files, private_key)
        write_public_key(private_key, models / PUBLIC_KEY)
        folder = models / manifest.device_version
        if not folder.exists():
            draft.chmod(0o755)
            draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _facts(rounds: list[store.Ended], folder: Path) -> dict[str, Any]:
    """Metrics, and who took part."""
    kept = [each for each in rounds if each.outcome == "kept"]
    used = {name for each in kept for name, part in each.nodes if part.part == "used"}
    return {
        "rounds_kept": len(kept),
        "nodes": len(used),
        "figures": dict(kept[-1].figures),
        "loss_before_run": kept[0].figures.get("loss_before"),
        "bytes": sum(file.stat().st_size for file in folder.iterdir()),
    }

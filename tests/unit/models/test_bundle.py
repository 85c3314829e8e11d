"""A bundle opens only if every byte of it is what was signed."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import BundleError, InvalidInputError, OutputError
from fleet.models.bundle import (
    MANIFEST,
    SIGNATURE,
    Bundle,
    Manifest,
    content_version,
    write_bundle,
)
from fleet.models.signing import generate_key, load_private_key
from fleet.protocol.messages import Sampling

FILES = {"step.onnx": b"a graph", "captions.json": b'{"words": []}'}


def manifest_fields(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "family": "test",
        "cloud_version": "cloud",
        "grid": 4,
        "picture_size": 16,
        "vocab_size": 50,
        "caption_positions": 4,
        "layers": 1,
        "heads": 2,
        "head_dim": 8,
        "sampling": Sampling(temperature=1, top_k=0, guidance=2),
        "score": "spread",
        "thresholds": {"spread": 0.3},
        "budget": 0.3,
        "prefix_tokens": 1,
        "feature_scale": (1.0,) * 48,
    }
    return fields | changes


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    private, public = tmp_path / "signing.key", tmp_path / "signing.pub"
    generate_key(private, public)
    return private, public


@pytest.fixture
def bundle(tmp_path: Path, keys: tuple[Path, Path]) -> Path:
    path = tmp_path / "bundle"
    write_bundle(path, manifest_fields(), FILES, keys[0])
    return path


def test_a_bundle_opens_and_reads_back(bundle: Path, keys: tuple[Path, Path]) -> None:
    opened = Bundle.open(bundle, keys[1])

    assert opened.read("step.onnx") == b"a graph"
    assert opened.manifest.tokens == 16
    assert opened.manifest.width == 16
    assert opened.manifest.threshold == 0.3


def test_the_version_follows_from_the_content(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    again = write_bundle(tmp_path / "again", manifest_fields(), FILES, keys[0])
    same = write_bundle(tmp_path / "same", manifest_fields(), FILES, keys[0])
    file = write_bundle(tmp_path / "file", manifest_fields(), FILES | {"a": b""}, keys[0])
    threshold = write_bundle(
        tmp_path / "threshold", manifest_fields(thresholds={"spread": 0.31}), FILES, keys[0]
    )

    assert same.device_version == again.device_version
    assert len({m.device_version for m in (same, file, threshold)}) == 3


def test_a_field_at_its_default_leaves_the_version_and_is_not_written(
    tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    plain = write_bundle(tmp_path / "plain", manifest_fields(), FILES, keys[0])
    said = write_bundle(tmp_path / "said", manifest_fields(max_run=0), FILES, keys[0])
    capped = write_bundle(tmp_path / "capped", manifest_fields(max_run=12), FILES, keys[0])

    assert plain.device_version == said.device_version != capped.device_version
    assert "max_run" not in json.loads((tmp_path / "said" / MANIFEST).read_text())
    assert Bundle.open(tmp_path / "capped", keys[1]).manifest.max_run == 12


def test_the_call_share_is_the_budget_s_rest_after_the_prefix(bundle: Path) -> None:
    manifest = Manifest.model_validate_json((bundle / MANIFEST).read_text())

    assert manifest.call_share == pytest.approx((0.3 - 1 / 16) / (1 - 1 / 16))
    assert manifest.model_copy(update={"prefix_tokens": 8}).call_share == 0


def test_a_version_of_files_depends_on_names_and_contents() -> None:
    versions = [content_version(f) for f in ({"a": b"1"}, {"a": b"2"}, {"b": b"1"}, {})]

    assert len(set(versions)) == 4


def test_a_changed_file_is_refused_by_name(bundle: Path, keys: tuple[Path, Path]) -> None:
    (bundle / "step.onnx").write_bytes(b"A graph")

    with pytest.raises(BundleError, match=r"step\.onnx is not the file that was signed"):
        Bundle.open(bundle, keys[1])


def test_a_cut_file_is_refused_with_both_sizes(bundle: Path, keys: tuple[Path, Path]) -> None:
    (bundle / "step.onnx").write_bytes(b"a gra")

    with pytest.raises(BundleError, match=r"step\.onnx has 5 bytes instead of 7"):
        Bundle.open(bundle, keys[1])


def test_a_file_changed_after_opening_is_refused(bundle: Path, keys: tuple[Path, Path]) -> None:
    opened = Bundle.open(bundle, keys[1])
    (bundle / "step.onnx").write_bytes(b"A graph")

    with pytest.raises(BundleError, match="step"):
        opened.read("step.onnx")


@pytest.mark.parametrize("name", [MANIFEST, SIGNATURE, "step.onnx"])
def test_a_missing_file_is_named(bundle: Path, keys: tuple[Path, Path], name: str) -> None:
    (bundle / name).unlink()

    with pytest.raises(BundleError, match=f"{name} cannot be read"):
        Bundle.open(bundle, keys[1])


def test_a_changed_manifest_is_refused(bundle: Path, keys: tuple[Path, Path]) -> None:
    text = (bundle / MANIFEST).read_text()
    (bundle / MANIFEST).write_text(text.replace("0.3", "0.9"))

    with pytest.raises(BundleError, match="was not signed with the key"):
        Bundle.open(bundle, keys[1])


def test_another_key_is_refused(bundle: Path, tmp_path: Path) -> None:
    generate_key(tmp_path / "other.key", tmp_path / "other.pub")

    with pytest.raises(BundleError, match=r"other\.pub"):
        Bundle.open(bundle, tmp_path / "other.pub")


def resign(bundle: Path, private_key: Path, **changes: Any) -> None:
    fields = json.loads((bundle / MANIFEST).read_text()) | changes
    text = json.dumps(fields).encode()
    (bundle / MANIFEST).write_bytes(text)
    (bundle / SIGNATURE).write_bytes(load_private_key(private_key).sign(text))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": "ciar-bundle-9"}, "'ciar-bundle-9'; this release reads 'ciar-bundle-1'"),
        ({"grid": 0}, "not a bundle's manifest"),
        ({"colour": "red"}, "not a bundle's manifest"),
        ({"device_version": "0123456789abcdef"}, "not its content's hash"),
        ({"score": "guess"}, "no threshold for its score 'guess'"),
    ],
)
def test_a_signed_manifest_that_makes_no_sense_is_refused(
    bundle: Path, keys: tuple[Path, Path], change: dict[str, Any], complaint: str
) -> None:
    resign(bundle, keys[0], **change)

    with pytest.raises(BundleError, match=complaint):
        Bundle.open(bundle, keys[1])


def test_file_names_stay_inside_the_folder(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    for name in ("../escape", "/etc/passwd", "", ".hidden", "a/b"):
        with pytest.raises(InvalidInputError):
            write_bundle(tmp_path / "bundle", manifest_fields(), {name: b""}, keys[0])


def test_thresholds_are_finite(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    fields = manifest_fields(thresholds={"spread": float("inf")})

    with pytest.raises(InvalidInputError, match="finite"):
        write_bundle(tmp_path / "bundle", fields, FILES, keys[0])


def test_a_private_key_is_readable_by_its_owner_only(keys: tuple[Path, Path]) -> None:
    assert stat.S_IMODE(keys[0].stat().st_mode) == 0o600


def test_a_private_key_is_never_replaced(keys: tuple[Path, Path]) -> None:
    with pytest.raises(OutputError, match="exists already"):
        generate_key(*keys)


def test_a_file_that_is_no_key_is_refused(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "nonsense").write_text("nonsense")

    with pytest.raises(BundleError, match="not a public key"):
        Bundle.open(bundle, tmp_path / "nonsense")
    with pytest.raises(BundleError, match="not a private key"):
        write_bundle(bundle, manifest_fields(), FILES, tmp_path / "nonsense")

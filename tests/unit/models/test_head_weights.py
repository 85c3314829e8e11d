"""A head's weights in a bundle's step graph: read, changed and put back."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from fleet.errors import BundleError, InvalidInputError
from fleet.models.bundle import DEVICE_FOLDER, STEP_GRAPH, reference_path
from fleet.models.head_weights import HeadWeights, head_of, with_head


@pytest.fixture(scope="module")
def graph() -> bytes:
    return (reference_path() / DEVICE_FOLDER / STEP_GRAPH).read_bytes()


def test_the_shipped_graph_has_a_head_that_comes_back_as_it_was(graph: bytes) -> None:
    head = head_of(graph)

    assert head_of(with_head(graph, head)).version == head.version
    assert (head.vocab_size, head.dim, head.radius_down.shape) == (1024, 128, (32, 128))


def test_another_head_changes_the_head_and_not_the_network(graph: bytes) -> None:
    head = head_of(graph)
    other = replace(head, center=head.center + 1)

    changed = with_head(graph, other)

    assert head_of(changed).version == other.version != head.version
    before, after = (
        {each.name: each.raw_data for each in onnx.load_from_string(content).graph.initializer}
        for content in (graph, changed)
    )
    assert {name for name in before if before[name] != after[name]} == {"head.center.weight"}


def test_a_head_of_another_shape_does_not_fit(graph: bytes) -> None:
    head = head_of(graph)
    rank = head.radius_down[:5]
    small = replace(head, radius_down=rank, radius_up=head.radius_up[:, :5].copy())

    with pytest.raises(BundleError, match=r"is \(32, 128\) in the graph, not \(5, 128\)"):
        with_head(graph, small)


def test_what_is_no_graph_is_refused() -> None:
    with pytest.raises(BundleError, match="the step graph"):
        head_of(b"not a graph")


def test_weights_must_fit_together() -> None:
    with pytest.raises(InvalidInputError, match="radius weights of shapes"):
        HeadWeights(
            np.zeros((4, 3), np.float32),
            np.zeros((2, 3), np.float32),
            np.zeros((4, 3), np.float32),
            np.zeros(4, np.float32),
        )


def test_a_center_bias_is_kept_and_is_part_of_the_version_only_where_there_is_one() -> None:
    plain = HeadWeights(
        np.ones((4, 3), np.float32),
        np.zeros((2, 3), np.float32),
        np.zeros((4, 2), np.float32),
        np.zeros(4, np.float32),
    )
    biased = replace(plain, center_bias=np.ones(4, np.float32))

    assert plain.version == "64be880a7d9e8297"  # as of before there was such a field
    assert biased.version != plain.version
    assert HeadWeights.from_bytes(biased.to_bytes()).center_bias.tolist() == [1] * 4
    assert HeadWeights.from_bytes(plain.to_bytes()).version == plain.version
    with pytest.raises(InvalidInputError, match="a center bias of"):
        replace(plain, center_bias=np.ones(3, np.float32))

"""The bench of rounds runs, and its nodes learn."""

from simulations.bench_rounds import bench


def test_every_node_takes_part_and_the_loss_falls() -> None:
    rows = bench(nodes=3, rounds=2)

    assert [row.used for row in rows] == [3, 3]
    assert rows[1].loss < rows[0].loss
    assert all(row.kb_up > 0 < row.kb_down for row in rows)

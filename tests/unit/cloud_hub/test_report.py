"""Tables and times of `cloud_hub query`."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from cloud_hub.report import answer_table, device_table, parse_since, picture_table
from cloud_hub.store.answers import Answer
from cloud_hub.store.queries import DeviceRow, PictureRow
from fleet.errors import InvalidInputError

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        (None, None),
        ("90m", NOW - timedelta(minutes=90)),
        ("7d", NOW - timedelta(days=7)),
        ("2026-11-30", datetime(2026, 11, 30, tzinfo=UTC)),
        ("2026-11-30T10:00+02:00", datetime(2026, 11, 30, 8, tzinfo=UTC)),
    ],
)
def test_a_time_is_a_span_or_a_date(text: str | None, moment: datetime | None) -> None:
    assert parse_since(text, NOW) == moment


@pytest.mark.parametrize("text", ["", "soon", "7y", "99999999999999w", "2026-13-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="such as 90m"):
        parse_since(text, NOW)


def test_large_numbers_are_written_out_and_small_ones_keep_four_digits() -> None:
    answer = Answer(("node", "bytes_up", "p50"), [("n1", 35620.4, 0.0123456)])
    console = Console(width=100)

    with console.capture() as capture:
        console.print(answer_table(answer))

    text = capture.get()
    assert "35,620" in text
    assert "0.01235" in text


def test_tables_show_shares_in_percent_and_dashes_where_nothing_is_known() -> None:
    known = DeviceRow(
        node_id="n1",
        state="ready",
        pictures=2,
        tokens=512,
        cloud_share=0.125,
        local_share=0.5,
        corrected_share=0.1,
        round_trips=12.0,
        bytes_up=5400.0,
        bytes_down=900.0,
        latency_p50_s=1.5,
        latency_p95_s=2.25,
        tokens_per_s=170.6,
        fallbacks=0,
    )
    shares = dict.fromkeys(("cloud_share", "local_share", "corrected_share"))
    means = dict.fromkeys(("round_trips", "bytes_up", "bytes_down"))
    speeds = dict.fromkeys(("latency_p50_s", "latency_p95_s", "tokens_per_s"))
    nothing: dict[str, Any] = shares | means | speeds
    unknown = DeviceRow(node_id="n2", state="", pictures=0, tokens=0, fallbacks=0, **nothing)
    picture = PictureRow(NOW, "n1", "0123456789", "entropy", 0.5, 256, 1, 2, 3, 4, 5, 6, 7, 8.0, "")

    console = Console(width=200)
    with console.capture() as shown:
        console.print(device_table([known, unknown]), picture_table([picture]))

    lines = shown.get()
    assert "12.5%" in lines
    assert "5.4" in lines
    assert "2.25" in lines
    assert "unknown" in lines
    assert "2026-12-01 12:00:00" in lines
    assert "01234567 " in lines

"""The report of a run as one page that opens anywhere, and as text."""

import html
import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from fleet.errors import OutputError
from simulations.report.figures import by_network, over_time
from simulations.report.findings import Findings, Table, tables

_WIDE = 140
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1c1c1c; background: #fff }
h1 { font-size: 1.5rem; margin-bottom: .2rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse } td, th { padding: .15rem .9rem .15rem 0; text-align: right }
td:first-child, th:first-child { text-align: left } th { border-bottom: 1px solid #999 }
svg { max-width: 100%; height: auto } code { background: #f2f2f2; padding: .1rem .3rem }
.broken td { color: #a02020; text-align: left }
"""
_BESIDE = """<p>Beside this page: <code>events.jsonl</code>, every event; <code>{logs}</code>,
what agents and hub logged; <code>hub.db</code>, what the hub stored, for <code>cloud_hub
query</code>.</p>"""
_LOGS = {"virtual": "log.jsonl", "real": "logs/"}


def write_report(out: Path, found: Findings) -> str:
    """Writes `index.html` and `report.txt`; returns the text.

    Raises:
        OutputError: A file cannot be written.
    """
    said = tables(found)
    report = text(said)
    try:
        (out / "report.txt").write_text(report, encoding="utf-8")
        (out / "index.html").write_text(page(found, said), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{out} cannot be written: {error.strerror}") from error
    return report


def text(said: Sequence[Table]) -> str:
    """The tables as they stand in a terminal."""
    stream = io.StringIO()
    console = Console(file=stream, width=_WIDE, color_system=None)
    for table in said:
        shown = RichTable(*table.columns, title=table.title, title_justify="left", box=None)
        for column in shown.columns[1:]:
            column.justify = "right" if table.title != "Broken laws" else "left"
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown)
        console.print()
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def page(found: Findings, said: Sequence[Table]) -> str:
    """The report as HTML, its figures inside."""
    title = html.escape(f"{found.scenario.name}, seed {found.seed}, {found.clock} clock")
    whole, *rest = said
    parts = [
        f"<h1>{title}</h1><p>{html.escape(found.scenario.about)}</p>",
        _html(whole),
        "<h2>Over time</h2>",
        over_time(found),
        "<h2>How long a picture takes</h2>",
        by_network(found),
        *(_html(table) for table in rest),
        _BESIDE.format(logs=_LOGS[found.clock]),
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>{title}</title><style>{_STYLE}</style>{''.join(parts)}</html>"
    )


def _html(table: Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

    kind = ' class="broken"' if table.title == "Broken laws" and table.rows[0][1] else ""
    rows = "".join(row(each, "td") for each in table.rows)
    head = row(table.columns, "th")
    return f"<h2>{html.escape(table.title)}</h2><table{kind}>{head}{rows}</table>"

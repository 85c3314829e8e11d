"""The documentation mentions everything it should, and its links lead somewhere."""

import re
from pathlib import Path
from typing import get_args

import pytest

from cloud_hub.settings import HubSettings
from cloud_hub.store import views
from edge_agent.settings import AgentSettings
from fleet import errors
from fleet.definitions import RATIOS, Ratio
from fleet.ids import BootId, NodeId, WorkerId
from fleet.protocol import messages, topics
from fleet.settings import Settings, settings_table

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PACKAGES = ("fleet", "edge_agent", "cloud_hub", "simulations", "migrations")
PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("fleet/**/*.md")]

NODE, BOOT, WORKER = NodeId("{node}"), BootId("{boot}"), WorkerId("{worker}")
TOPICS = [
    topics.HUB_STATES,
    topics.hub_state(WORKER),
    topics.OPENS,
    topics.RECORDS,
    topics.NODE_STATES,
    topics.requests_to(WORKER),
    topics.node_state(NODE),
    topics.desired(NODE),
    topics.reported(NODE),
    topics.open_request(NODE),
    topics.pinned_request(NODE, WORKER),
    topics.record(NODE),
    topics.inbox(NODE, BOOT),
    topics.round_tasks(NODE),
    topics.round_reply(NODE),
    topics.ROUND_REPLIES,
    topics.round_body("{body}"),
    f"{topics.ROOT}/hub/body/{{body}}/{{index}}",
]
MESSAGES = get_args(get_args(messages.AnyMessage)[0])
ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type)]


@pytest.mark.parametrize("kind", [HubSettings, AgentSettings])
def test_settings_md_is_what_scripts_docs_writes(kind: type[Settings]) -> None:
    assert settings_table(kind) in (DOCS / "settings.md").read_text()


@pytest.mark.parametrize("kind", [HubSettings, AgentSettings])
def test_every_setting_says_what_it_means(kind: type[Settings]) -> None:
    silent = [row for row in settings_table(kind).splitlines() if row.endswith("|  |")]

    assert [] == silent


@pytest.mark.parametrize("topic", TOPICS)
def test_every_topic_is_in_protocol_md(topic: str) -> None:
    assert f"`{topic}`" in (DOCS / "protocol.md").read_text()


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_every_message_is_in_protocol_md(message: type[messages.Message]) -> None:
    assert f"`{message.__name__}`" in (DOCS / "protocol.md").read_text()


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_is_in_exit_codes_md_with_its_code(kind: type[errors.FleetError]) -> None:
    page = (DOCS / "exit-codes.md").read_text()

    assert re.search(rf"^\| {kind.exit_code} \| `{kind.__name__}`", page, re.MULTILINE)


def test_every_package_is_in_structure_md() -> None:
    page = (DOCS / "structure.md").read_text()
    folders = [
        str(init.parent.relative_to(ROOT))
        for package in PACKAGES
        for init in (ROOT / package).rglob("__init__.py")
    ]

    assert [] == [folder for folder in folders if f"`{folder}/`" not in page]


def test_every_top_level_entry_is_in_the_readme() -> None:
    page = (ROOT / "README.md").read_text()
    local = {"demo", "work", "build", "dist", "README.md"}
    entries = [entry.name for entry in ROOT.iterdir() if not entry.name.startswith((".", "_"))]

    assert [] == [name for name in entries if name not in local and name not in page]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    local = [target for target in targets if "://" not in target]

    assert [] == [target for target in local if not (page.parent / target).exists()]


@pytest.mark.parametrize("ratio", RATIOS, ids=lambda ratio: ratio.name)
def test_every_ratio_is_in_metrics_md(ratio: Ratio) -> None:
    assert f"`{ratio.name}`" in (DOCS / "metrics.md").read_text()


@pytest.mark.parametrize("view", views.names())
def test_every_view_is_in_metrics_md(view: str) -> None:
    assert f"`{view}`" in (DOCS / "metrics.md").read_text()

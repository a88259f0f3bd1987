"""The Python clients, kcat and Kafka's console tools against StreamHouse; ``make test-clients`` runs the rest.

What each must see is what it saw on Apache Kafka, kept in results/kafka.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from client_admin import admin
from client_features import OK, Cell, Ground, Scenario, acks, codecs, groups_lean, idempotence, positions, resume
from client_report import main as report
from client_results import RESULTS, Results
from client_roster import CLIENTS, Client
from client_targets import Target, streamhouse_alone
from client_tools import TOOLS_NAME, tools
from matrix import BACK_MS, cross

LEAN = [client for client in CLIENTS if client.lean]
BASE_MS = int(time.time() * 1000) - BACK_MS
TOOLS = ("kafka-console-producer, -consumer",)
KAFKA = Results(RESULTS / "kafka.json")
STORIES: list[Scenario] = [codecs, acks, positions, groups_lean, resume, idempotence, admin]


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with streamhouse_alone() as running:
        yield running


@pytest.fixture(scope="module")
def as_on_kafka() -> Callable[[str, Cell], str | None]:
    def compare(client: str, cell: Cell) -> str | None:
        theirs: dict[str, Any] = KAFKA.cells[client][cell.feature]
        if cell.outcome != theirs["outcome"]:
            return f"{cell.feature}: {cell.outcome}, on Kafka {theirs['outcome']}: {cell.detail}"
        if cell.seen != theirs.get("seen"):
            return f"{cell.feature}: saw {cell.seen}, on Kafka {theirs.get('seen')}"
        return None

    return compare


def ground(client: Client, target: Target) -> Ground:
    return Ground(client=client, target=target, admin=CLIENTS[0], base_ms=BASE_MS)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
@pytest.mark.parametrize("client", LEAN, ids=lambda client: client.name)
def test_a_client_sees_what_it_sees_on_kafka(
    client: Client, story: Scenario, target: Target, as_on_kafka: Callable[[str, Cell], str | None]
) -> None:
    cells = list(story(ground(client, target)))
    assert cells
    assert [problem for cell in cells if (problem := as_on_kafka(client.name, cell))] == []


def test_without_idempotence_the_same_losses_write_records_twice(target: Target) -> None:
    """So that the story of idempotence could fail."""
    here = ground(CLIENTS[0], target)
    topic = here.create("twice", 1)
    records = [{"key": None, "value": "eA==", "headers": []} for _ in range(30)]
    batch = {"partition": 0, "records": records}
    sent = here.run("produce", topic, bootstrap=target.lossy_bootstrap, batches=[batch], pause_ms=20)
    assert sent.ok, sent
    assert len(here.read_all(topic, 31)) > 30


@pytest.mark.parametrize("client", LEAN, ids=lambda client: client.name)
def test_what_one_client_writes_every_other_reads(client: Client, target: Target) -> None:
    """Runs after the stories above, which wrote."""
    cells = list(cross(ground(client, target), LEAN))
    assert len(cells) == len(LEAN)
    assert [f"{cell.feature}: {cell.detail}" for cell in cells if cell.outcome != OK] == []


def test_kafkas_own_tools_work(target: Target, as_on_kafka: Callable[[str, Cell], str | None]) -> None:
    cells = list(tools(target, TOOLS))
    assert [cell.feature for cell in cells] == list(TOOLS)
    assert [problem for cell in cells if (problem := as_on_kafka(TOOLS_NAME, cell))] == []


def test_the_page_of_clients_is_up_to_date() -> None:
    assert report(["--check"]) == 0, "run: .venv/bin/python tests/clients/client_report.py"

"""Every client × every feature, on StreamHouse and on Apache Kafka; ``make test-clients`` runs it.

    python tests/clients/matrix.py --target kafka --target streamhouse       all of it
    … --client Java --client kcat --scenario groups                          a part; results are merged into the file
    … --check                                                                exit code 1 unless all is as on Kafka

Results go to results/kafka.json and results/streamhouse.json, and from there to docs/reference/clients.md. A cell
passes when its own check does and the client saw the same on both.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import client_report
from client_admin import admin
from client_crash import crash
from client_dataset import difference
from client_features import (
    FAILED,
    OK,
    Cell,
    Ground,
    Scenario,
    acks,
    by_partition,
    codecs,
    groups,
    idempotence,
    positions,
    resume,
    write_topic,
    written,
)
from client_results import RESULTS, Results, differences
from client_roster import CLIENTS, Client
from client_targets import Target, apache_kafka, apache_kafka_cluster, streamhouse_alone, streamhouse_fleet
from client_tools import TOOLS_NAME, tools

BACK_MS: Final = 3_600_000  # records are written as of an hour ago: young enough for every retention

ALONE: Final[dict[str, Scenario]] = {
    "codecs": codecs,
    "acks": acks,
    "positions": positions,
    "groups": groups,
    "resume": resume,
    "idempotence": idempotence,
    "admin": admin,
}
THREE: Final[dict[str, Scenario]] = {"crash": crash}
CROSS = "cross"
TOOLS = "tools"
SCENARIOS: Final = (*ALONE, CROSS, TOOLS, *THREE)

Start = Callable[[], AbstractContextManager[Target]]
TARGETS: Final[dict[str, tuple[Start, Start]]] = {
    "kafka": (apache_kafka, apache_kafka_cluster),
    "streamhouse": (streamhouse_alone, streamhouse_fleet),
}

Report = Callable[[str], None]


def run_alone(
    target: Target, clients: Sequence[Client], wanted: Sequence[str], results: Results, report: Report
) -> None:
    base_ms = int(time.time() * 1000) - BACK_MS
    for client in clients:
        ground = Ground(client=client, target=target, admin=CLIENTS[0], base_ms=base_ms)
        told = ground.run("version")
        if told.ok:
            results.versions[client.name] = told.value["version"]
        for name in wanted:
            if name in ALONE:
                _run_one(name, ALONE[name], ground, results, report)
    if CROSS in wanted:
        for client in clients:
            ground = Ground(client=client, target=target, admin=CLIENTS[0], base_ms=base_ms)
            _run_one(CROSS, lambda each: cross(each, clients), ground, results, report)
    if TOOLS in wanted:
        for cell in tools(target):
            results.add(TOOLS_NAME, cell)
            report(f"{target.name}: {TOOLS_NAME}: {cell.feature}: {cell.outcome} {cell.detail}")


def run_three(
    target: Target, clients: Sequence[Client], wanted: Sequence[str], results: Results, report: Report
) -> None:
    base_ms = int(time.time() * 1000) - BACK_MS
    for client in clients:
        ground = Ground(client=client, target=target, admin=CLIENTS[0], base_ms=base_ms)
        for name in wanted:
            if name in THREE:
                _run_one(name, THREE[name], ground, results, report)


def cross(ground: Ground, writers: Sequence[Client]) -> Iterator[Cell]:
    """One client reads what all have written: identical bytes, from every writer and with every codec."""
    wanted = {write_topic(writer): written(writer, ground.base_ms) for writer in writers}
    count = sum(len(records) for topic in wanted.values() for records in topic.values())
    answer = ground.run("consume", topics=list(wanted), count=count, timeout_ms=40_000)
    for writer in writers:
        topic = write_topic(writer)
        found: dict[int, list[dict[str, Any]]] = {}
        if answer.ok:
            found = by_partition(record for record in answer.value["records"] if record["topic"] == topic)
        problems = [difference(records, found.get(number, [])) for number, records in wanted[topic].items()]
        problem = next((problem for problem in problems if problem), None)
        if not answer.ok:
            problem = f"{answer.value} | {answer.stderr[-300:]}"
        yield Cell(feature=f"reads {writer.name}", outcome=FAILED if problem else OK, detail=problem or "")


def _run_one(name: str, scenario: Scenario, ground: Ground, results: Results, report: Report) -> None:
    began = time.monotonic()
    cells: list[Cell] = []
    try:
        for cell in scenario(ground):
            cells.append(cell)
            results.add(ground.client.name, cell)
    except Exception as error:
        traceback.print_exc()
        cells.append(Cell(feature=name, outcome=FAILED, detail=f"the scenario broke: {error}"))
        results.add(ground.client.name, cells[-1])
    bad = "".join(f"\n    {cell.feature}: {cell.detail}" for cell in cells if cell.outcome == FAILED)
    good = sum(cell.outcome == OK for cell in cells)
    seconds = time.monotonic() - began
    report(f"{ground.target.name}: {ground.client.name}: {name}: {good} of {len(cells)} ok, {seconds:.1f} s{bad}")


def run(
    target: str, clients: Sequence[Client], wanted: Sequence[str], report: Report, *, directory: Path = RESULTS
) -> Results:
    alone, three = TARGETS[target]
    results = Results(directory / f"{target}.json")
    for start, part, names in ((alone, run_alone, (*ALONE, CROSS, TOOLS)), (three, run_three, tuple(THREE))):
        if not set(wanted) & set(names):
            continue
        with start() as running:
            results.target = {"name": running.name, "version": running.version}
            part(running, clients, wanted, results, report)
        results.save()
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", action="append", choices=sorted(TARGETS))
    parser.add_argument("--client", action="append", choices=[client.name for client in CLIENTS])
    parser.add_argument("--scenario", action="append", choices=SCENARIOS)
    parser.add_argument("--directory", type=Path, default=RESULTS)
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args(arguments)
    clients = [client for client in CLIENTS if not chosen.client or client.name in chosen.client]
    for target in chosen.target or sorted(TARGETS):
        run(target, clients, chosen.scenario or SCENARIOS, _say, directory=chosen.directory)
    if chosen.directory == RESULTS:
        client_report.main([])
    if not chosen.check:
        return 0
    found = differences(Results(chosen.directory / "streamhouse.json"), Results(chosen.directory / "kafka.json"))
    for line in found:
        _say(f"not as on Apache Kafka: {line}")
    return 1 if found else 0


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())

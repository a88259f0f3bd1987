"""What the matrix would say: of records that are not as written, and of cells that are not as on Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from client_dataset import difference, records_for
from client_features import FAILED, OK, UNSUPPORTED, Cell
from client_report import mark
from client_results import Results, differences
from client_tools import normal


def read_back(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [dict(record, offset=number) for number, record in enumerate(records)]


def test_records_as_written_do_not_differ() -> None:
    records = records_for("none", (), 1000)
    assert difference(records, read_back(records)) is None


@pytest.mark.parametrize(
    ("part", "value"), [("key", None), ("value", "eA=="), ("headers", [["x", None]]), ("timestamp", 5), ("offset", 99)]
)
def test_one_changed_part_of_one_record_is_noticed(part: str, value: Any) -> None:
    records = records_for("none", (), 1000)
    read = read_back(records)
    read[7][part] = value
    assert "record 7" in (difference(records, read) or "")


def test_a_record_too_few_or_too_many_is_noticed() -> None:
    records = records_for("none", (), 1000)
    assert difference(records, read_back(records)[:-1]) == f"{len(records) - 1} of {len(records)} records read"
    more = read_back([*records, records[0]])
    assert difference(records, more) == f"{len(records) + 1} records read, {len(records)} written"


def test_a_client_writes_nothing_that_it_cannot() -> None:
    names = {name for record in records_for("none", {"null-header"}, 0) for name, _ in record["headers"]}
    assert "null" not in names
    assert all("timestamp" not in record for record in records_for("none", {"timestamp"}, 0))


def results(path: Path, *cells: Cell) -> Results:
    made = Results(path)
    for cell in cells:
        made.add("client", cell)
    return made


def test_differences_from_kafka_are_told_also_when_both_pass(tmp_path: Path) -> None:
    kafka = results(
        tmp_path / "kafka.json",
        Cell(feature="same", outcome=OK, seen=[1]),
        Cell(feature="other", outcome=OK, seen=[1]),
        Cell(feature="broken", outcome=OK),
        Cell(feature="absent", outcome=UNSUPPORTED),
    )
    ours = results(
        tmp_path / "ours.json",
        Cell(feature="same", outcome=OK, seen=[1]),
        Cell(feature="other", outcome=OK, seen=[2]),
        Cell(feature="broken", outcome=FAILED, detail="why"),
        Cell(feature="absent", outcome=UNSUPPORTED),
        Cell(feature="new", outcome=OK),
    )
    told = differences(ours, kafka)
    assert [line.partition(":")[0] for line in told] == ["client, other", "client, broken", "client, new"]
    marks = {name: mark(ours.cells["client"][name], kafka.cells["client"].get(name)) for name in ours.cells["client"]}
    assert marks == {"same": "✓ / ✓", "other": "≠ / ✓", "broken": "✗ / ✓", "absent": "– / –", "new": "✓ / not run"}


def test_results_are_kept(tmp_path: Path) -> None:
    made = results(tmp_path / "kept.json", Cell(feature="one", outcome=OK, seen={"a": [1, 2]}))
    made.save()
    assert Results(tmp_path / "kept.json").cells == made.cells


def test_what_tools_print_is_compared_without_ids_and_addresses() -> None:
    here = normal("Topic: t\tTopicId: abc\tPartition: 0\tLeader: 1\tReplicas: 1\tIsr: 1\n127.0.0.1:9092 (id)\n")
    there = normal("Topic: t  TopicId: xyz  Partition: 0  Leader: 7  Replicas: 7  Isr: 7\n127.0.0.1:29092 (id)\n")
    assert here == there
    assert normal("Partition: 0 Leader: 1") != normal("Partition: 1 Leader: 1")

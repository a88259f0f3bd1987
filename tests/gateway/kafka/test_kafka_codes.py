"""Error codes against the list that Apache Kafka 4.2 itself prints."""

from __future__ import annotations

from pathlib import Path

from streamhouse.gateway.kafka.codes import ErrorCode

LIST = Path(__file__).resolve().parents[2] / "core" / "kafka_4_2_error_codes.txt"


def test_every_code_has_kafkas_name() -> None:
    rows = [line.split() for line in LIST.read_text().splitlines() if not line.startswith("#")]
    assert {code.name: code.value for code in ErrorCode} == {name: int(code) for code, name in rows}

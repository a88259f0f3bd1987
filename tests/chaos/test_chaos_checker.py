"""The judge of a whole chaos run: good histories have no anomaly, and every kind of anomaly is explained."""

from __future__ import annotations

from chaos_histories import Tale

from streamhouse.chaos.checker import AnomalyKind
from streamhouse.chaos.checker.anomalies import MEANINGS


def test_everything_in_its_place_is_no_anomaly(tale: Tale) -> None:
    tale.written(5, group=True)
    verdict = tale.verdict()
    assert verdict.findings.total() == 0
    assert verdict.writes.acknowledged == {"librdkafka all": 5}
    assert (verdict.writes.log_end, verdict.writes.deliveries) == (5, 5)


def test_an_empty_partition_is_no_anomaly(tale: Tale) -> None:
    tale.log()
    assert tale.found() == {}


def test_a_line_that_a_killed_client_cut_off_is_left_out(tale: Tale) -> None:
    tale.written(2)
    tale.raw("parts/t/0/made.produce", "A 9000 p 17")
    assert tale.found() == {}


def test_every_kind_of_anomaly_is_explained() -> None:
    assert set(MEANINGS) == set(AnomalyKind)

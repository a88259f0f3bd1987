"""How long a vacuum waits: defaults, and what is refused because it could delete what is still needed (R6, R7)."""

from __future__ import annotations

from typing import Any

import pytest

from streamhouse.core.errors import ConfigError
from streamhouse.core.limits import MAX_REQUEST_BODY_BYTES, MAX_ROWS_PER_SWEEP
from streamhouse.maintenance.vacuum.options import SHORTEST_READER_GRACE_MS, SHORTEST_WRITER_GRACE_MS, VacuumOptions
from streamhouse.objectstore.retries import DEFAULT_POLICY


def test_r6_a_writer_whose_object_was_refused_can_upload_the_largest_body_within_the_shortest_grace() -> None:
    upload_ms = DEFAULT_POLICY.deadline_ms + DEFAULT_POLICY.transfer_ms(MAX_REQUEST_BODY_BYTES)
    assert 3 * upload_ms <= SHORTEST_WRITER_GRACE_MS < VacuumOptions().writer_grace_ms


def test_r7_a_reader_can_use_up_all_its_retries_within_the_shortest_grace() -> None:
    assert 2 * DEFAULT_POLICY.deadline_ms < SHORTEST_READER_GRACE_MS < VacuumOptions().reader_grace_ms


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"writer_grace_ms": SHORTEST_WRITER_GRACE_MS - 1}, "waits for writers"),
        ({"reader_grace_ms": SHORTEST_READER_GRACE_MS - 1}, "waits for readers"),
        ({"writer_grace_ms": 0}, "too short"),
        ({"purge_rows": 0}, "0 entries"),
        ({"purge_rows": MAX_ROWS_PER_SWEEP + 1}, "are possible"),
        ({"pause_ms": -1}, "a pause of -1 ms"),
    ],
)
def test_what_is_too_short_or_impossible_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        VacuumOptions(**given)


def test_the_refusal_says_what_is_long_enough() -> None:
    with pytest.raises(ConfigError) as refused:
        VacuumOptions(writer_grace_ms=1000)
    assert refused.value.hint == "wait for 30m or longer"

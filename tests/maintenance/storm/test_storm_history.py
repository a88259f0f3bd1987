"""The judge of a storm finds each thing that must not happen to a log."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from storm_history import History, Promises, judge, value_of

from streamhouse.core.ids import PartitionKey, TopicId

KEY = PartitionKey(TopicId(UUID("0fe1d2c3-b4a5-4687-8978-6a5b4c3d2e1f")), 0)
GOOD = [(offset, value_of("writer.1", offset)) for offset in range(6)]
PROMISED = dict(GOOD[1:5])
SENT = {value for _, value in GOOD}


def test_a_log_that_keeps_its_promises_has_no_problem() -> None:
    assert judge(GOOD, PROMISED, begins_at=0, sent=SENT) == []
    assert judge(GOOD[3:], PROMISED, begins_at=3, sent=SENT) == []


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        (GOOD[:4], "was acknowledged at 4; there is None"),
        (GOOD[:2] + GOOD[3:], "offset 3 follows 1"),
        ([*GOOD, (6, GOOD[2][1])], "stands at 2 and at 6"),
        ([*GOOD[:2], (2, GOOD[3][1]), (3, GOOD[2][1]), *GOOD[4:]], "stands behind number 3"),
        ([*GOOD[:5], (5, GOOD[5][1][:-1])], "was never sent"),
        ([*GOOD[:5], (5, value_of("writer.1", 99))], "was never sent"),
        (GOOD[1:], "offset 1 follows -1"),
    ],
)
def test_every_broken_promise_is_found(log: list[tuple[int, str]], problem: str) -> None:
    assert any(problem in found for found in judge(log, PROMISED, begins_at=0, sent=SENT))


def test_a_history_that_ends_in_the_middle_of_a_line_keeps_what_was_written_before(tmp_path: Path) -> None:
    history = History(tmp_path, "writer.1", lambda: 5)
    values = history.send(2)
    history.acknowledged(KEY, 7, values)
    history.send(1)
    path = tmp_path / "writer.1.history"
    path.write_bytes(path.read_bytes()[:-3])
    promises = Promises.read(tmp_path)
    assert promises.sent == dict.fromkeys(values, 5)
    assert promises.acknowledged[str(KEY)] == {7: values[0], 8: values[1]}

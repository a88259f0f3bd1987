"""The judge itself: one made-up bad log for each thing it must find. No process runs here."""

from __future__ import annotations

from uuid import UUID

import pytest
from e2e_clients import Ledger, Write
from e2e_judge import StoredLog, judge

from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata.contract import EpochStart

KEY = PartitionKey(TopicId(UUID(int=1)), 0)


def write(*values: str, offset: int | None, acks: int = -1, sequence: int | None = None, epoch: int = 1) -> Write:
    return Write(
        producer=values[0][0],
        key=KEY,
        values=values,
        acks=acks,
        sequence=sequence,
        offset=offset,
        agent="me",
        epoch=epoch,
    )


def led(*agents: str, start_offset: int = 0) -> tuple[EpochStart, ...]:
    return tuple(
        EpochStart(epoch=epoch, start_offset=start_offset, agent_id=agent, wal_id=UUID(int=epoch), started_at_ms=0)
        for epoch, agent in enumerate(agents, 1)
    )


def verdict(
    values: tuple[str, ...], *writes: Write, history: tuple[EpochStart, ...] = (), wal: bool = False, last: bool = False
) -> list[str]:
    log = StoredLog(values=values, epochs=(1,) * len(values), history=history)
    return judge({KEY: log}, Ledger(writes=list(writes)), wal_is_durable=wal, every_agent_led_last=last)


def test_a_good_log_is_good() -> None:
    assert (
        verdict(
            ("a1", "a2", "b1", "a3", "c1"),
            write("a1", "a2", offset=0, sequence=0),
            write("b1", offset=2),
            write("b2", offset=None),
            write("a3", offset=3, sequence=2),
            write("c1", offset=0, acks=1),
            history=led("me", "other"),
            last=True,
        )
        == []
    )


@pytest.mark.parametrize(
    ("values", "writes", "found"),
    [
        ((), [write("a1", offset=0)], "lost"),
        (("b1", "a1"), [write("a1", offset=0), write("b1", offset=None)], "it is at [1]"),
        (("a1", "a1"), [write("a1", offset=0, sequence=0)], "is there 2 times"),
        (("a1", "x"), [write("a1", offset=0)], "it was not written here"),
        (("a1", "b1", "a2"), [write("a1", "a2", offset=0), write("b1", offset=1)], "reads ('a1', 'b1')"),
        (("a2", "a1"), [write("a1", offset=1, sequence=0), write("a2", offset=0, sequence=1)], "stands before"),
        ((), [write("a1", offset=0, acks=1)], "lost"),
    ],
    ids=["lost", "moved", "doubled", "strange", "torn", "reordered", "acks=1 lost while no other agent led"],
)
def test_what_is_wrong_is_found(values: tuple[str, ...], writes: list[Write], found: str) -> None:
    problems = verdict(values, *writes)
    assert any(found in problem for problem in problems), problems


def test_r4_an_acks_1_record_that_was_overtaken_may_be_missing_until_its_agent_has_led_again() -> None:
    overtaken = write("a1", offset=0, acks=1)
    history = led("me", "other")
    assert verdict((), overtaken, history=history) == []
    assert "never came back" in verdict((), overtaken, history=history, last=True)[0]
    assert "lost" in verdict((), overtaken, history=history, wal=True)[0]
    assert "lost" in verdict((), overtaken, history=led("me", "other", start_offset=1))[0]
    assert "lost" in verdict((), write("a1", offset=0, acks=1, sequence=0), history=history)[0]


def test_what_a_reader_saw_must_stay() -> None:
    ledger = Ledger(writes=[write("a1", offset=0), write("a2", offset=None)])
    ledger.saw(KEY, 0, "a2")
    ledger.saw(KEY, 0, "a1")
    log = StoredLog(values=("a1",), epochs=(1,), history=())
    problems = judge({KEY: log}, ledger, wal_is_durable=False)
    assert len(problems) == 2
    assert "read 'a2' and then 'a1'" in problems[0]
    assert "a reader saw 'a2' at 0" in problems[1]

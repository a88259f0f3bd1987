"""What the Python clients do with a broker's answers: the cells of docs/idempotence.md that a quick test can check.

A client release that behaves in another way makes a test fail. Then the page, and perhaps the answers, have to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final

import pytest
from idempotence_producers import WAIT_S, Aiokafka, IdempotentProducer, KafkaPython, Librdkafka
from scripted_broker import LOSE_THE_ANSWER, ScriptedBroker, Sent, Unknown

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated")  # in kafka-python

NO_ROOM: Final = 19
TOO_LARGE: Final = 10
FIVE: Final = ["m0", "m1", "m2", "m3", "m4"]
CLIENTS: Final[dict[str, Callable[[int], IdempotentProducer]]] = {
    "librdkafka": Librdkafka,
    "aiokafka": Aiokafka,
    "kafka-python": KafkaPython,
}
TAKEN: Final = Unknown(0)
OUT_OF_ORDER: Final = Unknown(45)
DUPLICATE: Final = Unknown(46)
OLD_EPOCH: Final = Unknown(47)
FORGOTTEN: Final = Unknown(59)
FORGOTTEN_WITHOUT_LOG_START: Final = Unknown(59, -1)


class Fate(Enum):
    """What becomes of the record that got the answer, and of the next one."""

    RECOVERS = "delivered, and in the log once"
    FAILS = "the client reports a failure, and delivers the next record"
    FAILS_ALL = "the client reports a failure of this record and of the next"
    LOST = "reported as delivered, and not in the log"


@contextmanager
def producing(client: str, broker: ScriptedBroker) -> Iterator[IdempotentProducer]:
    producer = CLIENTS[client](broker.port)
    try:
        yield producer
    finally:
        producer.close()


def refuse_once(value: str, code: int) -> Callable[[Sent], int | None]:
    left = [code]
    return lambda sent: left.pop() if sent.value == value and left else None


def fate(delivered: bool, next_delivered: bool, log: list[str], value: str) -> Fate:
    if delivered:
        assert log.count(value) <= 1
        return Fate.RECOVERS if value in log else Fate.LOST
    assert value not in log
    return Fate.FAILS if next_delivered else Fate.FAILS_ALL


@pytest.mark.parametrize("behind", [NO_ROOM, 45, 59])
@pytest.mark.parametrize("client", CLIENTS)
def test_r21_batches_refused_behind_a_refused_first_batch_are_all_written_in_order(client: str, behind: int) -> None:
    broker = ScriptedBroker(unknown=Unknown(behind), script=refuse_once("m0", NO_ROOM), hold_until=5)
    with broker, producing(client, broker) as made:
        assert made.send(FIVE) == [True] * 5
        assert broker.log == FIVE


def test_r21_librdkafka_counts_a_refused_batch_as_delivered_when_a_later_one_is_taken() -> None:
    """Why no batch may be taken after an earlier one was refused, whatever is answered to the retry."""

    def script(sent: Sent) -> int | None:
        return NO_ROOM if sent.value == "m0" else None

    broker = ScriptedBroker(unknown=TAKEN, script=script, hold_until=5, hold_s=WAIT_S)
    with broker, producing("librdkafka", broker) as made:
        assert made.send(FIVE) == [True] * 5
        assert broker.log == FIVE[1:]


@pytest.mark.parametrize(
    ("client", "answer", "expected"),
    [
        ("librdkafka", FORGOTTEN, Fate.RECOVERS),
        ("librdkafka", FORGOTTEN_WITHOUT_LOG_START, Fate.RECOVERS),
        ("librdkafka", OUT_OF_ORDER, Fate.FAILS_ALL),
        ("librdkafka", DUPLICATE, Fate.LOST),
        ("librdkafka", OLD_EPOCH, Fate.FAILS),
        ("aiokafka", FORGOTTEN, Fate.FAILS_ALL),
        ("aiokafka", OUT_OF_ORDER, Fate.FAILS_ALL),
        ("aiokafka", DUPLICATE, Fate.LOST),
        ("aiokafka", OLD_EPOCH, Fate.FAILS_ALL),
        ("kafka-python", FORGOTTEN, Fate.FAILS),
        ("kafka-python", FORGOTTEN_WITHOUT_LOG_START, Fate.FAILS),
        ("kafka-python", OUT_OF_ORDER, Fate.FAILS),
        ("kafka-python", DUPLICATE, Fate.LOST),
        ("kafka-python", OLD_EPOCH, Fate.FAILS),
    ],
)
def test_a_client_that_the_broker_has_forgotten(client: str, answer: Unknown, expected: Fate) -> None:
    with ScriptedBroker(unknown=answer) as broker, producing(client, broker) as made:
        assert [made.send([value]) for value in ("a", "b", "c")] == [[True]] * 3
        broker.forget_producers()
        (delivered,) = made.send(["d"])
        (next_delivered,) = made.send(["e"])
        assert fate(delivered, next_delivered, broker.log, "d") is expected


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_counts_duplicate_as_delivered(client: str) -> None:
    answers = [46, LOSE_THE_ANSWER]

    def script(sent: Sent) -> int | None:
        return answers.pop() if sent.value == "b" and answers else None

    with ScriptedBroker(unknown=OUT_OF_ORDER, script=script) as broker, producing(client, broker) as made:
        assert [made.send([value]) for value in ("a", "b", "c")] == [[True]] * 3
        assert broker.log == ["a", "b", "c"]
        assert answers == []


@pytest.mark.parametrize(("client", "expected"), [("librdkafka", True), ("aiokafka", False)])
def test_a_new_client_whose_first_batch_is_refused_for_good(client: str, expected: bool) -> None:
    script = refuse_once("m0", TOO_LARGE)
    with ScriptedBroker(unknown=OUT_OF_ORDER, script=script, hold_until=5) as broker, producing(client, broker) as made:
        assert made.send(FIVE) == [False] + [expected] * 4
        assert broker.log == (FIVE[1:] if expected else [])

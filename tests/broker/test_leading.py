"""Questions for a leader while the leadership changes: asked again once, and never waited for longer than allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from streamhouse.broker.caller import Caller
from streamhouse.broker.cluster_view import ClusterView
from streamhouse.broker.leading import MAX_WAIT_S, Leading
from streamhouse.core.errors import NotLeader, TopicNotFound
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata.contract import Topic, WriteMode

CALLER = Caller(protocol="test")
TOPIC = Topic(
    topic_id=TopicId(UUID(int=1)),
    name="orders",
    partition_count=1,
    configs={},
    write_mode=WriteMode.LEASED,
    created_at_ms=0,
    version=1,
)


class Store:
    """No topic but those that the view knows."""

    async def get_topic(self, name: str) -> Topic:
        raise TopicNotFound(f"there is no topic {name}")


class Writes:
    """A leadership that changes, or not."""

    def __init__(self, *, changing: bool) -> None:
        self.changing = changing
        self.waits: list[float] = []

    def is_changing(self, key: PartitionKey) -> bool:
        return self.changing

    async def wait_settled(self, keys: Sequence[PartitionKey], timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        self.changing = False
        return True


class Question:
    """Refused as often as told."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.asked: list[PartitionKey] = []

    async def __call__(self, key: PartitionKey) -> str:
        self.asked.append(key)
        if len(self.asked) <= self.refusals:
            raise NotLeader(str(key), current_leader=None)
        return "answer"


def leading(writes: Any) -> Leading:
    store: Any = Store()
    view = ClusterView(metadata=store, agent_id="a", liveness_timeout_ms=1, heartbeat_interval_ms=1)
    view.learned(TOPIC)
    return Leading(view, writes)


async def test_a_leader_answers_at_once() -> None:
    writes, question = Writes(changing=True), Question(0)
    assert await leading(writes).begin(caller=CALLER).ask("orders", 0, question) == "answer"
    assert writes.waits == []


async def test_a_refused_question_is_asked_again_after_the_change() -> None:
    writes, question = Writes(changing=True), Question(1)
    assert await leading(writes).begin(caller=CALLER).ask("orders", 0, question) == "answer"
    (waited,) = writes.waits
    assert waited <= MAX_WAIT_S
    assert len(question.asked) == 2


async def test_without_a_change_the_refusal_is_the_answer_and_names_the_topic() -> None:
    writes, question = Writes(changing=False), Question(9)
    with pytest.raises(NotLeader, match="orders/0"):
        await leading(writes).begin(caller=CALLER).ask(TOPIC.topic_id, 0, question)
    assert len(question.asked) == 1


async def test_it_is_asked_again_only_once() -> None:
    writes, question = Writes(changing=True), Question(9)
    with pytest.raises(NotLeader):
        await leading(writes).begin(caller=CALLER).ask("orders", 0, question)
    assert len(question.asked) == 2


async def test_the_requests_own_time_out_bounds_the_wait() -> None:
    writes, question = Writes(changing=True), Question(1)
    with pytest.raises(NotLeader):
        await leading(writes).begin(caller=CALLER, timeout_ms=0).ask("orders", 0, question)
    assert writes.waits == []


async def test_a_topic_that_is_not_there_is_not_asked_for() -> None:
    question = Question(0)
    with pytest.raises(TopicNotFound, match="there is no topic other"):
        await leading(Writes(changing=True)).begin(caller=CALLER).ask("other", 0, question)
    assert question.asked == []

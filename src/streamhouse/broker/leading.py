"""Questions that only a partition's leader answers, for every front end, with the wait for it.

A client that is told "not the leader" rests, asks for metadata, and comes back. Between the moment an agent agrees to
lead and the moment the partition is open, that costs more than the change itself, and clients that try three times
within 0.3 s give up. So the question waits here, at most MAX_WAIT_S or the request's own time-out, and is asked again.
Produce and Fetch have waits of their own, because they answer for many partitions at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from streamhouse.broker.caller import Caller
from streamhouse.broker.cluster_view import ClusterView, TopicRef
from streamhouse.broker.writes import Writes, partition_key, unknown_topic
from streamhouse.core.errors import NotLeader, StreamHouseError
from streamhouse.core.ids import PartitionKey

T = TypeVar("T")

MAX_WAIT_S: Final = 5.0
"""The longest wait for a partition to open or to be led elsewhere; clients give up a request after 30 s."""


class Leading:
    def __init__(self, view: ClusterView, writes: Writes) -> None:
        self._view = view
        self._writes = writes

    def begin(self, *, caller: Caller, timeout_ms: int | None = None) -> LeaderWait:
        """``timeout_ms``: the request's own time-out, if it has one."""
        return LeaderWait(self._view, self._writes, caller, timeout_ms)


class LeaderWait:
    """The time that one request may wait for leaders, whatever the number of its partitions."""

    def __init__(self, view: ClusterView, writes: Writes, caller: Caller, timeout_ms: int | None) -> None:
        wait_s = MAX_WAIT_S if timeout_ms is None else min(MAX_WAIT_S, max(timeout_ms, 0) / 1000)
        self.caller = caller
        """Who asks, for the questions."""
        self._view = view
        self._writes = writes
        self._give_up_s = asyncio.get_running_loop().time() + wait_s

    async def ask(self, topic: TopicRef, partition: int, question: Callable[[PartitionKey], Awaitable[T]]) -> T:
        """The answer. If it is NotLeader and the leadership changes here, ask once more when the change is over.

        Raises TopicNotFound, and what the question raises.
        """
        key = await self._find(topic, partition)
        try:
            try:
                return await question(key)
            except NotLeader:
                left_s = self._give_up_s - asyncio.get_running_loop().time()
                if left_s <= 0 or not self._writes.is_changing(key):
                    raise
            await self._writes.wait_settled([key], left_s)
            return await question(key)
        except StreamHouseError as error:
            raise self._view.with_name(error, key) from error.__cause__

    async def _find(self, ref: TopicRef, partition: int) -> PartitionKey:
        known = self._view.find(ref) or await self._view.look_up(ref)
        if known is None:
            raise unknown_topic(ref)
        return partition_key(known.topic_id, partition)

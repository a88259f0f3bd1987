"""What a lease means here: a partition of the leased log to open, to close in order, or to drop.

Coordinator slots are held like partitions; what they coordinate joins with consumer groups.
"""

from __future__ import annotations

from streamhouse.app.topics import TopicWatch
from streamhouse.cluster.contract import Loss
from streamhouse.cluster.member import Member
from streamhouse.core.ids import PartitionKey
from streamhouse.log.leased.log import LeasedLog
from streamhouse.metadata.contract import Lease, LeaseKey


class LogOwner:
    """Stands between cluster and log, which do not know each other."""

    def __init__(self) -> None:
        self._log: LeasedLog | None = None
        self._member: Member | None = None
        self._topics: TopicWatch | None = None

    def attach(self, *, log: LeasedLog, member: Member, topics: TopicWatch) -> None:
        self._log, self._member, self._topics = log, member, topics

    async def gained(self, lease: Lease) -> None:
        log, member = self._parts()
        if not isinstance(lease.key, PartitionKey):
            return
        assert self._topics is not None
        topic = await self._topics.get(lease.key.topic_id)
        await log.open_partition(lease, topic, guard=member.lease_table.guard(lease.key))

    async def losing(self, key: LeaseKey) -> int:
        log, _ = self._parts()
        if not isinstance(key, PartitionKey):
            return 0
        next_offset = await log.close_partition(key)
        log.drop_partition(key, "its leadership was handed over")
        return next_offset

    def lost(self, key: LeaseKey, reason: Loss) -> None:
        log, _ = self._parts()
        if isinstance(key, PartitionKey):
            log.drop_partition(key, f"its lease is {reason.value}")

    def dropped(self, key: PartitionKey, reason: str) -> None:
        """The log gave a partition up by itself; the lease must not outlive it."""
        _, member = self._parts()
        member.give_up(key, reason)

    def _parts(self) -> tuple[LeasedLog, Member]:
        assert self._log is not None, "attach comes before the member starts"
        assert self._member is not None
        return self._log, self._member

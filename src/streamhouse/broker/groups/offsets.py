"""Committed offsets: which member may commit and read them.

Offsets are not cached. A commit is in the store when it is acknowledged, and a fetch reads the store. So "no offset" is
never the answer only because something is not loaded yet. The commits and fetches of one group run one after the other.

Every agent answers a fetch that names no member, because the answer comes from the store and needs no coordinator. This
matters: librdkafka does not repeat an OffsetFetch that was answered with NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE.
Its consumer then keeps its partitions and reads nothing until the next rebalance. For the same reason a fetch is
answered with COORDINATOR_LOAD_IN_PROGRESS, which librdkafka repeats, when the store does not answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from streamhouse.broker.caller import Caller
from streamhouse.broker.groups.classic import ClassicGroup
from streamhouse.broker.groups.consumer import ConsumerGroup
from streamhouse.broker.groups.consumer_protocol import PROTOCOL_TYPE
from streamhouse.broker.groups.contract import GroupState
from streamhouse.broker.groups.loaded import LoadedGroup
from streamhouse.broker.groups.registry import Registry
from streamhouse.broker.slots.slots import HeldSlot
from streamhouse.core.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    GroupNotEmpty,
    GroupNotFound,
    GroupSubscribed,
    IllegalGeneration,
    LimitExceeded,
    NotCoordinator,
    OffsetMetadataTooLarge,
    PartitionNotFound,
    StaleMemberEpoch,
    StreamHouseError,
)
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_NOTED_COMMITS
from streamhouse.metadata import checks
from streamhouse.metadata.contract import CommittedOffset, OffsetCommit, slot_of

__all__ = ["CommitRequest", "CommittedOffset", "OffsetCommit", "Offsets", "Outcomes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    """The generation or the member epoch, by the protocol of the member; -1 for a commit without membership."""
    offsets: Sequence[OffsetCommit]
    knows_epochs: bool = True
    """Whether the client knows the newer protocol's errors (OffsetCommit v9+)."""


Outcomes = dict[PartitionKey, StreamHouseError | None]


class Offsets:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._latest: OrderedDict[tuple[str, PartitionKey], int] = OrderedDict()

    def latest(self) -> Iterator[tuple[str, PartitionKey, int]]:
        """The last commits of the groups that this agent coordinates: (group, partition, offset). For metrics only: it
        has a bound, and what was committed with another coordinator is missing."""
        registry = self._registry
        for (group_id, key), offset in list(self._latest.items()):
            slot = registry.slots.get(slot_of(group_id))
            if slot is not None and group_id in registry.in_slot(slot).loaded:
                yield group_id, key, offset
            else:
                del self._latest[group_id, key]

    def _note(self, group_id: str, commits: Iterable[OffsetCommit], missing: Collection[PartitionKey]) -> None:
        for commit in commits:
            if commit.key not in missing:
                self._latest[group_id, commit.key] = commit.offset
                self._latest.move_to_end((group_id, commit.key))
        while len(self._latest) > MAX_NOTED_COMMITS:
            self._latest.popitem(last=False)

    # Commit.

    async def commit(self, request: CommitRequest, *, caller: Caller) -> Outcomes:
        """The outcome of each partition. Raises an error that holds for all of them."""
        await self._registry.ready(request.group_id)
        slot = self._registry.slot_for(request.group_id)
        outcomes: Outcomes = {}
        good: dict[PartitionKey, OffsetCommit] = {}
        for commit in request.offsets:
            outcomes[commit.key] = _fault(request.group_id, commit)
            if outcomes[commit.key] is None:
                good[commit.key] = commit
        missing = await self._registry.slots.fenced(slot, self._commit(slot, request, list(good.values())))
        self._note(request.group_id, good.values(), missing)
        for key in missing:
            outcomes[key] = PartitionNotFound(f"there is no partition {key}")
        return outcomes

    async def _commit(self, slot: HeldSlot, request: CommitRequest, offsets: list[OffsetCommit]) -> list[PartitionKey]:
        known = self._registry.in_slot(slot).loaded.get(request.group_id)
        if known is None and request.generation >= 0:
            unknown = GroupNotFound if request.knows_epochs else IllegalGeneration
            raise unknown(f"there is no group {request.group_id}")
        group = known or self._registry.find_or_make(request.group_id)
        give_up_ms = self._registry.now_ms() + self._registry.slots.store_timeout_ms
        try:
            async with group.offsets_lock:
                if self._registry.now_ms() >= give_up_ms:  # the request has been refused, so nothing may be committed
                    raise CoordinatorNotAvailable("earlier commits of the group took too long")
                self._check_commit(group, request)
                if not offsets:
                    return []
                missing = await self._registry.metadata.commit_offsets(request.group_id, slot.fence, offsets)
                group.stored = True
                return missing
        finally:
            self._registry.apply(group, ())

    def _check_commit(self, group: LoadedGroup, request: CommitRequest) -> None:
        machine = group.machine
        if isinstance(machine, ClassicGroup):
            effects = machine.check_commit(
                request.member_id, request.instance_id, request.generation, self._registry.now_ms()
            )
            self._registry.apply(group, effects)
            return
        try:
            machine.check_commit(request.member_id, request.generation)
        except StaleMemberEpoch as error:
            if request.knows_epochs:
                raise
            raise IllegalGeneration(str(error)) from error

    # Fetch.

    async def fetch(
        self,
        group_id: str,
        *,
        keys: Sequence[PartitionKey] | None,
        caller: Caller,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> Mapping[PartitionKey, CommittedOffset]:
        """The committed offsets of ``keys``; None: of all partitions. Partitions without an offset are left out.

        ``member_id``, ``member_epoch``: the consumer-protocol member that asks. Only the coordinator can check them.
        """
        await self._registry.ready(group_id)
        asked = None if keys is None else list(dict.fromkeys(keys))
        is_member = member_id is not None or member_epoch >= 0
        try:
            try:
                slot = self._registry.slot_for(group_id)
                call = self._fetch(slot, group_id, asked, (member_id or "", member_epoch) if is_member else None)
                return await self._registry.slots.fenced(slot, call)
            except NotCoordinator:
                if is_member:
                    raise
                return await self._registry.slots.from_store(self._read(group_id, asked))
        except CoordinatorNotAvailable as error:
            raise CoordinatorLoading(str(error)) from error

    async def _read(self, group_id: str, keys: list[PartitionKey] | None) -> Mapping[PartitionKey, CommittedOffset]:
        return await self._registry.metadata.fetch_offsets(group_id, keys)

    async def _fetch(
        self, slot: HeldSlot, group_id: str, asked: list[PartitionKey] | None, member: tuple[str, int] | None
    ) -> Mapping[PartitionKey, CommittedOffset]:
        group = self._registry.in_slot(slot).loaded.get(group_id)
        if group is None:
            return await self._registry.metadata.fetch_offsets(group_id, asked)
        async with group.offsets_lock:
            if isinstance(group.machine, ConsumerGroup) and member is not None:
                group.machine.check_commit(*member)
            return await self._registry.metadata.fetch_offsets(group_id, asked)

    # Delete.

    async def delete(self, group_id: str, keys: Mapping[PartitionKey, str], *, caller: Caller) -> Outcomes:
        """``keys``: partitions with their topics' names. Raises GroupNotFound or GroupNotEmpty for all of them."""
        await self._registry.ready(group_id)
        slot = self._registry.slot_for(group_id)
        return await self._registry.slots.fenced(slot, self._delete(slot, group_id, keys))

    async def _delete(self, slot: HeldSlot, group_id: str, keys: Mapping[PartitionKey, str]) -> Outcomes:
        group = self._registry.in_slot(slot).loaded.get(group_id)
        outcomes: Outcomes = {}
        for key, topic in keys.items():
            reads = group is not None and _reads(group, key, topic)
            outcomes[key] = GroupSubscribed(f"group {group_id} still reads topic {topic}") if reads else None
        free = [key for key, error in outcomes.items() if error is None]
        if group is None:
            await self._registry.metadata.delete_offsets(group_id, slot.fence, free)
            return outcomes
        if not group.stored:
            raise GroupNotFound(f"there is no group {group_id}")
        async with group.offsets_lock:
            await self._registry.metadata.delete_offsets(group_id, slot.fence, free)
        return outcomes


def _fault(group_id: str, commit: OffsetCommit) -> StreamHouseError | None:
    try:
        checks.check_group(group_id, offsets=[commit])
    except LimitExceeded as error:
        return OffsetMetadataTooLarge(str(error))
    except StreamHouseError as error:
        return error
    return None


def _reads(group: LoadedGroup, key: PartitionKey, topic: str) -> bool:
    machine = group.machine
    if isinstance(machine, ConsumerGroup):
        return machine.subscribed(key.topic_id)
    if machine.state is GroupState.EMPTY:
        return False
    if machine.protocol_type != PROTOCOL_TYPE:
        raise GroupNotEmpty(f"group {machine.group_id} has members, and what they read is not known")
    return machine.subscribes(topic)

"""The state of a group as bytes: what ``metadata.save_group`` keeps, and what the next coordinator reads. Version 4.

    group      = u8 4 · msgpack
    classic    = [1, state, protocol type, protocol, leader or nil, [member …], silent]
      member   = [id, instance or nil, client, host, session ms, rebalance ms, protocols, assignment]
    consumer   = [2, assignment epoch, [[topic id, partition count] …], [member …], silent]
      member   = [id, instance or nil, rack or nil, client, host, rebalance ms, [topic …], pattern or nil,
                  assignor or nil, epoch, previous epoch, state, assigned, revoking, target or nil, traits or nil]
      traits   = [session ms, protocols]
    protocols  = [[name, metadata] …]                 silent = [[member id, milliseconds] …]
    partitions = [[topic id, [partition …]] …]        topic id = 16 bytes

The structs here and in snapshot.py declare this layout: msgspec writes a struct as an array, its fields in order. A
target of nil means that it is equal to ``assigned``, as it is for every member of a group at rest. The generation has a
column of its own. Empty bytes are a group that never had a member.

A changed layout is a new version, and every version is read for ever: old_payload.py reads 1 to 3. A build before
version 4 cannot read these bytes. It sees the version first, logs that it cannot read the members, and lets them join
again; the offsets and the generation are not in these bytes and stay. In a rolling upgrade this happens only if a group
moves from a new agent to an old one, see docs/groups.md.

No IO.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from streamhouse.broker.groups import old_payload
from streamhouse.broker.groups.contract import GroupState
from streamhouse.broker.groups.snapshot import (
    ClassicSnapshot,
    ClassicTraits,
    ConsumerMemberSnapshot,
    ConsumerSnapshot,
    GroupSnapshot,
    Reconciliation,
    StoredStruct,
)
from streamhouse.core.errors import CorruptDocument, UnsupportedVersion
from streamhouse.core.ids import PartitionKey, TopicId

_VERSION: Final = 4

_Partitions = tuple[tuple[TopicId, tuple[int, ...]], ...]


class _ConsumerMember(StoredStruct, frozen=True, kw_only=True):
    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topic_names: tuple[str, ...]
    topic_pattern: str | None
    assignor: str | None
    member_epoch: int
    previous_epoch: int
    state: Reconciliation
    assigned: _Partitions
    revoking: _Partitions
    target: _Partitions | None
    classic: ClassicTraits | None


_SAME: Final = tuple(
    name for name in _ConsumerMember.__struct_fields__ if name not in ("assigned", "revoking", "target")
)
"""The fields that are stored as they are in the snapshot."""


class _Consumer(StoredStruct, frozen=True, kw_only=True, tag=2):
    assignment_epoch: int
    partitions: tuple[tuple[TopicId, int], ...]
    members: tuple[msgspec.Raw, ...]
    """Bytes of members: those that did not change since the last save are not encoded again."""
    silent: tuple[tuple[str, int], ...]


_ENCODER: Final = msgspec.msgpack.Encoder(uuid_format="bytes")
_DECODER: Final = msgspec.msgpack.Decoder(ClassicSnapshot | _Consumer)
_MEMBER_DECODER: Final = msgspec.msgpack.Decoder(_ConsumerMember)


def encode(group: GroupSnapshot) -> bytes:
    stored: ClassicSnapshot | _Consumer
    if isinstance(group, ClassicSnapshot):
        stored = group
    else:
        stored = _Consumer(
            assignment_epoch=group.assignment_epoch,
            partitions=group.partitions,
            members=tuple(msgspec.Raw(_encoded(member)) for member in group.members),
            silent=group.silent,
        )
    return bytes((_VERSION,)) + _ENCODER.encode(stored)


def decode(payload: bytes) -> GroupSnapshot:
    """Raises CorruptDocument, or UnsupportedVersion for a version that a newer StreamHouse wrote."""
    if not payload:
        return ClassicSnapshot(state=GroupState.EMPTY, protocol_type="", protocol_name="", leader=None, members=())
    version = payload[0]
    if version in old_payload.VERSIONS:
        return old_payload.decode(payload)
    if version != _VERSION:
        raise UnsupportedVersion(
            f"the state of a group has version {version}; this agent reads 1 to {_VERSION}", hint="upgrade this agent"
        )
    try:
        stored = _DECODER.decode(memoryview(payload)[1:])
        if isinstance(stored, ClassicSnapshot):
            return stored
        return ConsumerSnapshot(
            assignment_epoch=stored.assignment_epoch,
            partitions=stored.partitions,
            members=tuple(_member(_MEMBER_DECODER.decode(member)) for member in stored.members),
            silent=stored.silent,
        )
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptDocument(f"the state of a group cannot be read: {error}") from error


def _encoded(member: ConsumerMemberSnapshot) -> bytes:
    if not member.encoded:
        stored = _ConsumerMember(
            **{name: getattr(member, name) for name in _SAME},
            assigned=_by_topic(member.assigned),
            revoking=_by_topic(member.revoking),
            target=None if member.target == member.assigned else _by_topic(member.target),
        )
        member.encoded.append(_ENCODER.encode(stored))
    return member.encoded[0]


def _member(stored: _ConsumerMember) -> ConsumerMemberSnapshot:
    assigned = _keys(stored.assigned)
    return ConsumerMemberSnapshot(
        **{name: getattr(stored, name) for name in _SAME},
        assigned=assigned,
        revoking=_keys(stored.revoking),
        target=assigned if stored.target is None else _keys(stored.target),
    )


def _by_topic(keys: Iterable[PartitionKey]) -> _Partitions:
    found: dict[TopicId, list[int]] = {}
    for key in keys:
        found.setdefault(key.topic_id, []).append(key.partition)
    return tuple((topic_id, tuple(sorted(found[topic_id]))) for topic_id in sorted(found))


def _keys(topics: _Partitions) -> frozenset[PartitionKey]:
    return frozenset(PartitionKey(topic_id, number) for topic_id, numbers in topics for number in numbers)

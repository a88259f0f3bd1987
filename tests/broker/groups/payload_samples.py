"""Groups of each kind, and the bytes that each version has written for them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import UUID

import msgspec

from streamhouse.broker.groups.contract import GroupState
from streamhouse.broker.groups.snapshot import (
    ClassicMemberSnapshot,
    ClassicSnapshot,
    ClassicTraits,
    ConsumerMemberSnapshot,
    ConsumerSnapshot,
    GroupSnapshot,
    Reconciliation,
)
from streamhouse.core.ids import PartitionKey, TopicId

S = TypeVar("S", bound=GroupSnapshot | ConsumerMemberSnapshot)

GOLDEN = Path(__file__).parent / "golden"

TOPIC = TopicId(UUID("00112233-4455-6677-8899-aabbccddeeff"))

CLASSIC = ClassicSnapshot(
    state=GroupState.STABLE,
    protocol_type="consumer",
    protocol_name="range",
    leader="c-1",
    members=(
        ClassicMemberSnapshot(
            member_id="c-1",
            instance_id=None,
            client_id="c",
            client_host="/127.0.0.1",
            session_timeout_ms=45_000,
            rebalance_timeout_ms=300_000,
            protocols=(("range", b"\0\1meta"), ("sticky", b"")),
            assignment=b"\0\1assigned",
        ),
        ClassicMemberSnapshot(
            member_id="s-2",
            instance_id="statisch-ü",
            client_id="",
            client_host="",
            session_timeout_ms=6_000,
            rebalance_timeout_ms=0,
            protocols=(("range", b"x"),),
            assignment=b"",
        ),
    ),
)

CONSUMER = ConsumerSnapshot(
    assignment_epoch=7,
    partitions=((TOPIC, 3),),
    members=(
        ConsumerMemberSnapshot(
            member_id="m",
            instance_id="i",
            rack_id="eu-1",
            client_id="c",
            client_host="/h",
            rebalance_timeout_ms=60_000,
            topic_names=("bills", "orders"),
            topic_pattern="^o.*",
            assignor="uniform",
            member_epoch=6,
            previous_epoch=-2,
            state=Reconciliation.UNREVOKED,
            assigned=frozenset({PartitionKey(TOPIC, 0)}),
            revoking=frozenset({PartitionKey(TOPIC, 1), PartitionKey(TOPIC, 2)}),
            target=frozenset(),
        ),
    ),
)


def replace(given: S, **changes: Any) -> S:
    if isinstance(given, msgspec.Struct):
        return cast("S", msgspec.structs.replace(given, **changes))
    return dataclasses.replace(given, **changes)


SILENT = (("c-1", 5_000), ("m", 44_999))
MIXED = replace(
    CONSUMER,
    members=(
        *CONSUMER.members,
        replace(
            CONSUMER.members[0],
            member_id="c-1",
            instance_id=None,
            encoded=[],
            classic=ClassicTraits(session_timeout_ms=10_000, protocols=(("range", b"\0\1meta"), ("sticky", b""))),
        ),
    ),
)


GOLDENS: dict[str, GroupSnapshot] = {
    "group_classic_v1": CLASSIC,
    "group_consumer_v1": CONSUMER,
    "group_classic_v2": replace(CLASSIC, silent=SILENT),
    "group_consumer_v2": replace(CONSUMER, silent=SILENT),
    "group_mixed_v3": MIXED,
    "group_classic_v4": replace(CLASSIC, silent=SILENT),
    "group_mixed_v4": replace(MIXED, silent=SILENT),
}


def golden(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text())

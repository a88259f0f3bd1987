"""The shape of a call, checked before anything is sent: every rule once, without a store."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from uuid import UUID

import pytest
from builders import batch, compaction_of, intent, intent_slice, leaderless_slice, leased_slice

from streamhouse.core import limits
from streamhouse.core.errors import InvalidPartitions, InvalidRequest, InvalidTopicName, LimitExceeded
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata import checks
from streamhouse.metadata.contract import (
    AgentInfo,
    BatchRun,
    Durability,
    Entry,
    EntryKind,
    IntentKey,
    LeaseKey,
    NewTopic,
    ObjectRef,
    OffsetCommit,
    SlotFence,
    SlotKey,
    slot_of,
)

KEY = PartitionKey(TopicId(UUID(int=1)), 0)
REF = ObjectRef(key="objects/1", size_bytes=100, created_at_ms=5)
LEASED = leased_slice(KEY, REF, batch(2), epoch=1, base=0)
LEADERLESS = leaderless_slice(KEY, batch(2))
INTENT_KEY = IntentKey(query_id="q", topic_id=KEY.topic_id, batch_id=0)
PIECE = intent_slice(0, REF)
AGENT = AgentInfo(agent_id="a", incarnation=UUID(int=2), listeners={"kafka": "a:9092"})
GROUP_SLOT = slot_of("group")


def entry(base: int, end: int) -> Entry:
    return Entry(
        base_offset=base,
        end_offset=end,
        kind=EntryKind.WAL,
        object_key=f"objects/{base}",
        byte_offset=0,
        byte_length=10,
        record_count=end - base + 1,
        encoding="kafka-batch-v2",
        min_timestamp_ms=0,
        max_timestamp_ms=0,
        epoch=0,
        created_at_ms=0,
    )


PLAN = compaction_of(KEY, [entry(0, 4), entry(5, 9)], REF, SeededRandomness(1))


def partition_keys(count: int) -> list[LeaseKey]:
    return [PartitionKey(KEY.topic_id, number) for number in range(count)]


GOOD: dict[str, Callable[[], None]] = {
    "topic": lambda: checks.check_new_topic(
        NewTopic(topic_id=KEY.topic_id, name="a", partition_count=limits.MAX_PARTITIONS_PER_TOPIC, configs={"a": ""})
    ),
    "leased": lambda: checks.check_slices([LEASED]),
    "leaderless": lambda: checks.check_slices([LEADERLESS]),
    "largest sequence": lambda: checks.check_slices(
        [leaderless_slice(KEY, batch(1, producer=2**62, epoch=2**15 - 1, sequence=2**31 - 1))]
    ),
    "most batches": lambda: checks.check_slices([leaderless_slice(KEY, *[batch(1)] * limits.MAX_COMMIT_BATCHES)]),
    "leases": lambda: checks.check_lease_keys([KEY, SlotKey(0)], 1),
    "most leases": lambda: checks.check_lease_keys(partition_keys(limits.MAX_LEASES_PER_CALL), limits.MAX_LEASE_TTL_MS),
    "endless lease": lambda: checks.check_lease_keys([KEY], None),
    "group": lambda: checks.check_group("", b"x", [OffsetCommit(key=KEY, offset=2**63 - 1, metadata="ü")]),
    "longest group id": lambda: checks.check_group("x" * limits.MAX_GROUP_ID_BYTES),
    "fence": lambda: checks.check_fence("group", SlotFence(slot=GROUP_SLOT, epoch=1)),
    "compaction": lambda: checks.check_compaction(PLAN),
    "intent": lambda: checks.check_intent(intent(INTENT_KEY, PIECE, PIECE)),
    "empty intent": lambda: checks.check_intent(intent(INTENT_KEY)),
    "agent": lambda: checks.check_agent(dataclasses.replace(AGENT, metadata={"a": 1, "b": None, "c": "\\u0000"})),
    "wal": lambda: checks.check_binding(Durability.WAL, UUID(int=1)),
    "object": lambda: checks.check_binding(Durability.OBJECT, None),
    "scan": lambda: checks.check_scan_limit(limits.MAX_SCAN_ENTRIES),
    "sweep": lambda: checks.check_sweep_limit(limits.MAX_ROWS_PER_SWEEP),
    "ttl": lambda: checks.check_ttl(limits.MAX_TTL_MS, "a pin"),
    "duration": lambda: checks.check_duration(0, "a grace"),
    "producer ids": lambda: checks.check_producer_id_count(limits.MAX_PRODUCER_ID_BLOCK),
    "keys": lambda: checks.check_keys(["x"] * limits.MAX_KEYS_PER_CALL, "objects"),
}


@pytest.mark.parametrize("case", GOOD)
def test_a_well_formed_call_passes_up_to_its_limits(case: str) -> None:
    GOOD[case]()


def slices_with(*batches: BatchRun) -> Callable[[], None]:
    return lambda: checks.check_slices([dataclasses.replace(LEASED, batches=batches)])


def leased_with(**changes: object) -> Callable[[], None]:
    return lambda: checks.check_slices([dataclasses.replace(LEASED, **changes)])  # type: ignore[arg-type]


def plan_with(**changes: object) -> Callable[[], None]:
    return lambda: checks.check_compaction(dataclasses.replace(PLAN, **changes))  # type: ignore[arg-type]


def piece_with(**changes: object) -> Callable[[], None]:
    changed = dataclasses.replace(PIECE, **changes)  # type: ignore[arg-type]
    return lambda: checks.check_intent(intent(INTENT_KEY, changed))


def agent_with(**changes: object) -> Callable[[], None]:
    return lambda: checks.check_agent(dataclasses.replace(AGENT, **changes))  # type: ignore[arg-type]


def topic_with(**changes: object) -> Callable[[], None]:
    new = NewTopic(topic_id=KEY.topic_id, name="a", partition_count=1, configs={})
    return lambda: checks.check_new_topic(dataclasses.replace(new, **changes))  # type: ignore[arg-type]


def offsets_of(*commits: OffsetCommit) -> Callable[[], None]:
    return lambda: checks.check_group("group", b"", commits)


BAD: list[tuple[str, Callable[[], None], type[InvalidRequest], str]] = [
    ("topic name", topic_with(name="a/b"), InvalidTopicName, "'a/b' is not allowed"),
    ("no partitions", topic_with(partition_count=0), InvalidPartitions, "0 partitions asked for"),
    ("config name", topic_with(configs={"": "1"}), InvalidRequest, "config's name is empty"),
    ("config value", topic_with(configs={"a": "\0"}), InvalidRequest, "config a holds a NUL"),
    ("no slices", lambda: checks.check_slices([]), InvalidRequest, "at least one partition"),
    ("slice twice", lambda: checks.check_slices([LEASED, LEASED]), InvalidRequest, "stands twice in a commit"),
    ("no batches", leased_with(batches=()), InvalidRequest, "lists no batches"),
    ("no bytes", leased_with(byte_length=0), InvalidRequest, "byte range 0+0"),
    ("negative start", leased_with(byte_offset=-1), InvalidRequest, "byte range -1+"),
    ("negative base", leased_with(base_offset=-1), InvalidRequest, "base offset -1"),
    ("base at the end", leased_with(base_offset=2**63 - 2), InvalidRequest, "base offset 9223372036854775806"),
    ("epoch 0", leased_with(epoch=0), InvalidRequest, "epoch 0"),
    ("no encoding", leased_with(encoding=""), InvalidRequest, "is empty"),
    ("no object key", leased_with(object=dataclasses.replace(REF, key="")), InvalidRequest, "an object key is empty"),
    ("object size", leased_with(object=dataclasses.replace(REF, size_bytes=-1)), InvalidRequest, "of -1 bytes"),
    ("object stamp", leased_with(object=dataclasses.replace(REF, created_at_ms=-1)), InvalidRequest, "made at -1"),
    ("empty batch", slices_with(batch(0, size=1)), InvalidRequest, "batch of 0 records"),
    ("batch without bytes", slices_with(batch(1, size=0)), InvalidRequest, "in 0 bytes"),
    ("producer", slices_with(batch(1, producer=-2)), InvalidRequest, "producer -2"),
    ("producer epoch", slices_with(batch(1, producer=1, epoch=-1)), InvalidRequest, "with epoch -1"),
    ("sequence", slices_with(batch(1, producer=1, sequence=2**31)), InvalidRequest, "sequence 2147483648"),
    (
        "bytes that do not add up",
        lambda: checks.check_slices([dataclasses.replace(LEADERLESS, byte_length=201)]),
        InvalidRequest,
        "add up to 200",
    ),
    (
        "too many batches",
        lambda: checks.check_slices([leaderless_slice(KEY, *[batch(1)] * (limits.MAX_COMMIT_BATCHES + 1))]),
        LimitExceeded,
        "batches in one commit",
    ),
    (
        "long object key",
        leased_with(object=dataclasses.replace(REF, key="ü" * limits.MAX_OBJECT_KEY_BYTES)),
        LimitExceeded,
        "bytes of an object key",
    ),
    ("lease twice", lambda: checks.check_lease_keys([SlotKey(1), SlotKey(1)]), InvalidRequest, "slot 1 stands twice"),
    ("lease of 0", lambda: checks.check_lease_keys([KEY], 0), InvalidRequest, "a lease of 0 ms"),
    (
        "long lease",
        lambda: checks.check_lease_keys([KEY], limits.MAX_LEASE_TTL_MS + 1),
        InvalidRequest,
        "are possible",
    ),
    (
        "many leases",
        lambda: checks.check_lease_keys(partition_keys(limits.MAX_LEASES_PER_CALL + 1)),
        LimitExceeded,
        "leases in one call",
    ),
    ("group id", lambda: checks.check_group("x" * 1025), LimitExceeded, "bytes of a group id"),
    ("group text", lambda: checks.check_group("a\ud800"), InvalidRequest, "not valid Unicode"),
    (
        "group state",
        lambda: checks.check_group("g", bytes(limits.MAX_GROUP_STATE_BYTES + 1)),
        LimitExceeded,
        "bytes of a group's state",
    ),
    (
        "low offset",
        offsets_of(OffsetCommit(key=KEY, offset=-(2**63) - 1)),
        InvalidRequest,
        "offset -9223372036854775809",
    ),
    ("huge offset", offsets_of(OffsetCommit(key=KEY, offset=2**63)), InvalidRequest, "offset 9223372036854775808"),
    (
        "offset twice",
        offsets_of(OffsetCommit(key=KEY, offset=1), OffsetCommit(key=KEY, offset=2)),
        InvalidRequest,
        "stands twice in an offset commit",
    ),
    (
        "long note",
        offsets_of(OffsetCommit(key=KEY, offset=1, metadata="x" * 4097)),
        LimitExceeded,
        "bytes of offset metadata",
    ),
    (
        "another slot",
        lambda: checks.check_fence("group", SlotFence(slot=SlotKey((GROUP_SLOT.slot + 1) % 50), epoch=1)),
        InvalidRequest,
        f"lives in {GROUP_SLOT}",
    ),
    (
        "slot epoch 0",
        lambda: checks.check_fence("group", SlotFence(slot=GROUP_SLOT, epoch=0)),
        InvalidRequest,
        "first leadership has epoch 1",
    ),
    ("no sources", plan_with(sources=()), InvalidRequest, "names no entries"),
    ("hole", plan_with(sources=(PLAN.sources[0], PLAN.sources[0])), InvalidRequest, "not consecutive at 5"),
    (
        "backward source",
        plan_with(sources=(dataclasses.replace(PLAN.sources[0], end_offset=-1),)),
        InvalidRequest,
        "not consecutive at 0",
    ),
    (
        "another range",
        plan_with(target=dataclasses.replace(PLAN.target, end_offset=8)),
        InvalidRequest,
        "turns offsets 0-9 into 0-8",
    ),
    (
        "another object",
        plan_with(target=dataclasses.replace(PLAN.target, object_key="x")),
        InvalidRequest,
        "not its target's key",
    ),
    (
        "no query",
        lambda: checks.check_intent(intent(dataclasses.replace(INTENT_KEY, query_id=""))),
        InvalidRequest,
        "a query id is empty",
    ),
    (
        "batch -1",
        lambda: checks.check_intent(intent(dataclasses.replace(INTENT_KEY, batch_id=-1))),
        InvalidRequest,
        "batch id ≥ 0",
    ),
    ("intent rows", piece_with(record_count=0), InvalidRequest, "impossible slice"),
    ("intent bytes", piece_with(byte_length=0), InvalidRequest, "impossible slice"),
    ("intent start", piece_with(byte_offset=-1), InvalidRequest, "impossible slice"),
    ("intent partition", piece_with(partition=-1), InvalidRequest, "impossible slice"),
    ("intent encoding", piece_with(encoding=""), InvalidRequest, "is empty"),
    (
        "many slices",
        lambda: checks.check_intent(intent(INTENT_KEY, *[PIECE] * (limits.MAX_INTENT_SLICES + 1))),
        LimitExceeded,
        "slices in one intent",
    ),
    ("agent id", agent_with(agent_id="x" * 257), LimitExceeded, "bytes of an agent id"),
    ("agent zone", agent_with(availability_zone=""), InvalidRequest, "an availability zone is empty"),
    ("agent metadata", agent_with(metadata={"a": {1, 2}}), InvalidRequest, "is not JSON"),
    ("agent NaN", agent_with(metadata={"a": float("inf")}), InvalidRequest, "is not JSON"),
    ("agent NUL", agent_with(metadata={"a\0": 1}), InvalidRequest, "holds a NUL"),
    ("no WAL id", lambda: checks.check_binding(Durability.WAL, None), InvalidRequest, "with no WAL id"),
    ("a WAL id", lambda: checks.check_binding(Durability.OBJECT, UUID(int=1)), InvalidRequest, "with a WAL id"),
    ("scan of 0", lambda: checks.check_scan_limit(0), InvalidRequest, "a scan of 0"),
    ("long scan", lambda: checks.check_scan_limit(10_001), LimitExceeded, "entries in one page"),
    ("sweep of 0", lambda: checks.check_sweep_limit(0), InvalidRequest, "a limit of 0"),
    ("long sweep", lambda: checks.check_sweep_limit(100_001), LimitExceeded, "rows in one call"),
    ("no time", lambda: checks.check_ttl(0, "a pin"), InvalidRequest, "a pin for 0 ms"),
    ("negative time", lambda: checks.check_duration(-1, "a grace"), InvalidRequest, "a grace of -1 ms"),
    ("no producer ids", lambda: checks.check_producer_id_count(0), InvalidRequest, "a block of 0"),
    ("many keys", lambda: checks.check_keys(["x"] * 100_001, "objects"), LimitExceeded, "objects in one call"),
]


@pytest.mark.parametrize(("call", "error", "complaint"), [one[1:] for one in BAD], ids=[one[0] for one in BAD])
def test_a_malformed_call_is_refused_with_what_is_wrong(
    call: Callable[[], None], error: type[InvalidRequest], complaint: str
) -> None:
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert complaint in str(caught.value)

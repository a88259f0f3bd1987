"""Which objects may be garbage: by key, stamp and horizon alone (R6, R24), and by what the metadata answers."""

from __future__ import annotations

from uuid import UUID

import pytest

from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.maintenance.vacuum.candidates import (
    Garbage,
    GarbageCause,
    ObjectKind,
    Suspect,
    dereferenced,
    horizon_of,
    listings,
    never_referenced,
    sort_page,
)
from streamhouse.metadata.contract import DereferencedObject, Pin
from streamhouse.objectstore.keys import (
    CLUSTER_ID_KEY,
    CompactedKey,
    ObjectKey,
    ProbeKey,
    SegmentKey,
    SharedBlobKey,
    StagingKey,
    metadata_progress_key,
)
from streamhouse.objectstore.objects import ObjectInfo

HORIZON_MS = 1_700_000_000_000
LOG = PartitionKey(TopicId(UUID(int=7)), 3)
OLD_MS = HORIZON_MS - 1


def blob(created_ms: int = OLD_MS) -> SharedBlobKey:
    return SharedBlobKey(created_ms=created_ms, object_id=UUID(int=1))


def segment(created_ms: int = OLD_MS) -> SegmentKey:
    return SegmentKey(log=LOG, base_offset=5, epoch=1, created_ms=created_ms, object_id=UUID(int=2))


def compacted(created_ms: int = OLD_MS) -> CompactedKey:
    return CompactedKey(log=LOG, base_offset=5, end_offset=9, created_ms=created_ms, object_id=UUID(int=3))


def staging(created_ms: int = OLD_MS) -> StagingKey:
    return StagingKey(created_ms=created_ms, object_id=UUID(int=4))


def probe(created_ms: int = OLD_MS) -> ProbeKey:
    return ProbeKey(created_ms=created_ms, object_id=UUID(int=5))


def info(key: ObjectKey | str, *, size: int = 10, modified_ms: int = 0) -> ObjectInfo:
    return ObjectInfo(key=str(key), size_bytes=size, modified_ms=modified_ms, etag=None)


def record(key: ObjectKey | str, *, dereferenced_at_ms: int = 0) -> DereferencedObject:
    return DereferencedObject(key=str(key), size_bytes=10, dereferenced_at_ms=dereferenced_at_ms)


def test_r6_the_horizon_is_the_writers_grace_behind_the_clock_and_not_below_zero() -> None:
    assert horizon_of(1_000_000, 300_000, []) == 700_000
    assert horizon_of(1_000, 300_000, []) == 0


def test_r6_the_horizon_does_not_pass_the_oldest_live_pin() -> None:
    pins = [
        Pin(pin_id=UUID(int=at_ms), owner="a sink", created_at_ms=at_ms, expires_at_ms=2_000_000)
        for at_ms in (650_000, 900_000)
    ]
    assert horizon_of(1_000_000, 300_000, pins) == 650_000
    assert horizon_of(1_000_000, 400_000, pins) == 600_000


@pytest.mark.parametrize("key", [blob, segment, compacted])
def test_r24_data_is_a_suspect_only_below_the_horizon(key: type[ObjectKey]) -> None:
    stamps_ms = [HORIZON_MS - 1, HORIZON_MS, HORIZON_MS + 1, HORIZON_MS + 10**10]
    page = sort_page([info(key(created_ms=stamp_ms)) for stamp_ms in stamps_ms], horizon_ms=HORIZON_MS)
    assert [suspect.created_ms for suspect in page.suspects] == [HORIZON_MS - 1]
    assert (page.leftovers, page.young, page.foreign) == ((), 3, 0)


def test_a_suspect_has_the_size_the_stamp_and_the_kind_of_its_object() -> None:
    page = sort_page([info(segment(), size=77), info(compacted()), info(blob())], horizon_ms=HORIZON_MS)
    assert page.suspects[0] == Suspect(key=str(segment()), kind=ObjectKind.SEGMENT, created_ms=OLD_MS, size_bytes=77)
    assert [each.kind for each in page.suspects[1:]] == [ObjectKind.COMPACTED, ObjectKind.SHARED_BLOB]


def test_data_is_judged_by_its_stamp_whatever_the_object_store_s_time() -> None:
    """A bucket that was copied shows new times; the stamps are what commits are judged by (R6)."""
    page = sort_page([info(blob(), modified_ms=HORIZON_MS + 1)], horizon_ms=HORIZON_MS)
    assert len(page.suspects) == 1


@pytest.mark.parametrize("key", [staging, probe])
def test_what_a_dead_process_left_is_garbage_when_stamp_and_store_time_are_old(key: type[ObjectKey]) -> None:
    """A machine whose clock is slow stamps its uploads too old; the store's time keeps them."""
    old, young = HORIZON_MS - 1, HORIZON_MS
    pages = {
        (stamp_ms, modified_ms): sort_page(
            [info(key(created_ms=stamp_ms), modified_ms=modified_ms)], horizon_ms=HORIZON_MS
        )
        for stamp_ms in (old, young)
        for modified_ms in (old, young)
    }
    assert [place for place, page in pages.items() if page.leftovers] == [(old, old)]
    assert [page.young for page in pages.values()] == [0, 1, 1, 1]
    assert pages[old, old].leftovers[0].cause is GarbageCause.LEFT_BEHIND
    assert not any(page.suspects for page in pages.values()), "nothing ever references one"


@pytest.mark.parametrize(
    "key",
    [
        CLUSTER_ID_KEY,
        metadata_progress_key(12),
        "backup/metadata.db",
        "wal-shared/README.txt",
        f"{blob()}.bak",
        f"topics/{LOG.topic_id.hex}/00003/notes",
        f"copies/{blob()}",
        "upload-staging/tmp",
        str(blob()).replace("-0000", "-000"),
    ],
)
def test_foreign_keys_and_marks_are_never_candidates(key: str) -> None:
    page = sort_page([info(key)], horizon_ms=HORIZON_MS * 2)
    assert (page.suspects, page.leftovers, page.young, page.foreign) == ((), (), 0, 1)


def test_r24_only_suspects_that_nothing_references_are_garbage() -> None:
    page = sort_page([info(blob(), size=3), info(segment(), size=4)], horizon_ms=HORIZON_MS)
    assert never_referenced(page.suspects, {str(segment()), "another"}) == [
        Garbage(key=str(segment()), kind=ObjectKind.SEGMENT, cause=GarbageCause.NEVER_REFERENCED, size_bytes=4)
    ]


def test_r7_dereferenced_later_than_this_vacuum_waits_for_is_left_to_the_next_one() -> None:
    listed = [record(blob(), dereferenced_at_ms=99), record(segment(), dereferenced_at_ms=100)]
    assert [each.key for each in dereferenced(listed, before_ms=100, left=frozenset())] == [str(blob())]


def test_a_record_that_was_tried_or_has_a_foreign_key_is_left_alone() -> None:
    listed = [record(blob()), record("objects/1"), record(compacted())]
    (found,) = dereferenced(listed, before_ms=1, left={str(blob())})
    assert (found.key, found.kind, found.cause) == (
        str(compacted()),
        ObjectKind.COMPACTED,
        GarbageCause.DEREFERENCED,
    )


def test_the_listings_cover_every_kind_of_key_and_stop_at_the_horizon_where_keys_sort_by_stamp() -> None:
    ranges = listings(HORIZON_MS)
    for make in (blob, segment, compacted, staging, probe):
        key = str(make())
        (found,) = [each for each in ranges if key.startswith(each.prefix)]
        assert found.stop_before is None or key < found.stop_before
    for make in (blob, staging, probe):
        key = str(make(HORIZON_MS))
        assert [each.stop_before <= key for each in ranges if key.startswith(each.prefix) and each.stop_before] == [
            True
        ]
    for key in (CLUSTER_ID_KEY, metadata_progress_key(1)):
        assert not any(key.startswith(each.prefix) for each in ranges), "vacuum does not even list it"

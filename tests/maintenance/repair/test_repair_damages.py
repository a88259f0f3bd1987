"""Which damaged entries may be repaired: a pure decision over all that was found."""

from __future__ import annotations

import pytest
from verify_entries import KEY, OTHER, entry

from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.repair.damages import REPAIRABLE, DamageList
from streamhouse.maintenance.verify import DamagedEntry, Finding, FindingKind
from streamhouse.maintenance.verify.findings import about
from streamhouse.metadata.contract import Entry, EntryKind

K = FindingKind
SEGMENT = entry(0, 9)
SLICE = entry(10, 19, EntryKind.WAL)


def damaged(each: Entry, *kinds: FindingKind, key: PartitionKey = KEY) -> DamagedEntry:
    findings = tuple(about(kind, key, each, f"about {kind}") for kind in kinds)
    return DamagedEntry(topic="orders", key=key, entry=each, findings=findings)


def in_index(kind: FindingKind, key: PartitionKey = KEY) -> Finding:
    return Finding(kind=kind, key=key, base_offset=20, end_offset=29, problem="no entry covers these")


def reasons(*found: DamagedEntry, told: tuple[Finding, ...] = (), max_entries: int = 100) -> list[str]:
    damages = DamageList(max_entries)
    for each in found:
        damages.add(each)
    for finding in told:
        damages.hear(finding)
    return [judged.reason for judged in damages.judged()]


@pytest.mark.parametrize("kind", list(FindingKind))
def test_i5_only_what_a_new_copy_of_the_batches_corrects_is_repairable(kind: FindingKind) -> None:
    may = {K.SEGMENT_HEAD, K.SEGMENT_FOOTER, K.SEGMENT_INDEX, K.BLOB_HEADER, K.TIMESTAMPS}
    assert reasons(damaged(SEGMENT, kind)) == ["" if kind in may else f"{kind}: about {kind}"]
    assert may == REPAIRABLE


def test_i5_one_finding_of_another_kind_forbids_the_repair_of_its_entry_alone() -> None:
    found = [damaged(SEGMENT, K.SEGMENT_HEAD, K.BLOCK, K.TIMESTAMPS), damaged(SLICE, K.BLOB_HEADER, K.TIMESTAMPS)]
    assert reasons(*found) == ["block: about block", ""]


@pytest.mark.parametrize("kind", [K.MISSING_PARTITION, K.LOG_START, K.GAP, K.OVERLAP, K.WATERMARK])
def test_i2_a_damaged_index_forbids_every_repair_of_its_partition(kind: FindingKind) -> None:
    found = [damaged(SEGMENT, K.SEGMENT_HEAD), damaged(SEGMENT, K.SEGMENT_HEAD, key=OTHER)]
    told = (in_index(kind), in_index(K.GAP))
    words = f"the index of its partition is damaged too ({kind}: no entry covers these)"
    assert reasons(*found, told=told) == [words, ""]


def test_i5_a_finding_that_is_not_of_the_index_forbids_nothing_elsewhere() -> None:
    told = tuple(about(kind, KEY, SEGMENT, "") for kind in (K.MISSING_OBJECT, K.BLOCK, K.EPOCH))
    assert reasons(damaged(SLICE, K.BLOB_HEADER), told=told) == [""]


def test_i3_both_of_two_entries_that_name_the_same_bytes_are_left() -> None:
    """Only the one that was met second has the finding; the first one may be what is wrong."""
    overlap = about(K.SLICE_OVERLAP, OTHER, SLICE, "also named by")
    found = [damaged(SLICE, K.BLOB_HEADER), damaged(SEGMENT, K.SEGMENT_HEAD)]
    assert reasons(*found, told=(overlap,)) == ["two entries name the same bytes of its object", ""]


def test_i3_beyond_the_overlaps_that_are_kept_every_slice_is_suspect() -> None:
    overlaps = tuple(
        about(K.SLICE_OVERLAP, OTHER, entry(0, 9, EntryKind.WAL, object_key=f"blob-{number}"), "also named by")
        for number in range(3)
    )
    found = [damaged(SLICE, K.BLOB_HEADER), damaged(SEGMENT, K.SEGMENT_HEAD)]
    assert reasons(*found, told=overlaps[:2], max_entries=2) == ["", ""]
    assert reasons(*found, told=overlaps, max_entries=2) == ["two entries name the same bytes of its object", ""]


def test_what_is_kept_is_bounded_and_the_rest_is_counted() -> None:
    damages = DamageList(2)
    for number in range(5):
        damages.add(damaged(entry(number, number), K.SEGMENT_HEAD))
    assert (len(list(damages.judged())), damages.left_out) == (2, 3)


def test_a_judged_entry_names_each_kind_once() -> None:
    damages = DamageList()
    damages.add(damaged(SEGMENT, K.TIMESTAMPS, K.SEGMENT_HEAD, K.TIMESTAMPS))
    (judged,) = damages.judged()
    assert (judged.topic, judged.key, judged.entry) == ("orders", KEY, SEGMENT)
    assert judged.kinds == (K.TIMESTAMPS, K.SEGMENT_HEAD)

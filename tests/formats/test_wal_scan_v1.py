"""R12: recovery stops at the first break, tells a crash from damage, and joins files into one log."""

from __future__ import annotations

import mmap
import random
import tracemalloc
from pathlib import Path

import pytest
from format_samples import START_MS, batch_run, damages
from hypothesis import given, settings
from hypothesis import strategies as st
from wal_samples import OTHER_WAL, WAL, WalImage, image, recycled

from streamhouse.core.errors import CorruptFrame, UnsupportedVersion
from streamhouse.core.limits import MIB
from streamhouse.formats.wal_frame_v1 import FILE_HEADER_BYTES, FRAME_MAGIC, FileHeader, FrameKind, encode_file_header
from streamhouse.formats.wal_scan_v1 import Ending, ScanResult, check_sequence, frames, scan

PAYLOADS = batch_run(count=9, seed=12, max_payload=90)


def scanned(data: bytes | bytearray, name: str = "file") -> ScanResult:
    return scan(data, wal_id=WAL, name=name)


def flip(data: bytes | bytearray, at: int, bit: int = 0) -> bytes:
    damaged = bytearray(data)
    damaged[at] ^= 1 << bit
    return bytes(damaged)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=12), st.integers(1, 5), st.integers(0, 300), st.integers(1, 2**40))
def test_a_file_round_trips(payloads: list[bytes], group: int, tail: int, first_lsn: int) -> None:
    made = image(payloads, group=group, generation=8, first_lsn=first_lsn)
    data = bytes(made.data) + bytes(tail)
    result = scanned(data)
    assert (result.ending, result.end_position) == (Ending.CLEAN, len(made.data))
    assert (result.frame_count, result.next_lsn) == (len(payloads), first_lsn + len(payloads))
    assert [(frame.lsn, bytes(frame.payload)) for frame in frames(data, result)] == [
        (first_lsn + number, payload) for number, payload in enumerate(payloads)
    ]


def test_scans_a_memory_mapped_file(tmp_path: Path) -> None:
    path = tmp_path / "0001.wal"
    path.write_bytes(bytes(image(PAYLOADS).data) + bytes(3 * MIB))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        with memoryview(mapped) as view:
            result = scanned(view)
            found = [bytes(frame.payload) for frame in frames(view, result)]
        assert (result.ending, found) == (Ending.CLEAN, PAYLOADS)


def test_r12_a_truncation_after_the_last_sync_is_torn() -> None:
    """Nine frames in groups of three: frames 7 to 9 were made when 6 was the last synced one."""
    made = image(PAYLOADS)
    unsynced_from = made.spans[6][0]
    for length in range(unsynced_from, len(made.data)):
        result = scanned(made.data[:length])
        whole = sum(end <= length for _, end in made.spans)
        at_a_boundary = length == made.spans[whole][0]
        assert result.ending is (Ending.CLEAN if at_a_boundary else Ending.TORN)
        assert (result.frame_count, result.next_lsn) == (whole, whole + 1)
        assert check_sequence([result]).next_lsn == whole + 1


def test_r12_a_flip_after_the_last_sync_is_torn() -> None:
    made = image(PAYLOADS)
    for at in range(made.spans[6][0], len(made.data)):
        result = scanned(flip(made.data, at, at % 8))
        intact = sum(end <= at for _, end in made.spans)
        assert (result.ending, result.frame_count) == (Ending.TORN, intact)
        assert check_sequence([result]).next_lsn == intact + 1


def test_r12_a_flip_that_a_later_sync_covers_is_corruption() -> None:
    made = image(PAYLOADS)
    for at in range(made.spans[0][0], made.spans[5][1]):
        result = scanned(flip(made.data, at, at % 8), "0001.wal")
        assert result.ending is Ending.CORRUPT
        with pytest.raises(CorruptFrame, match=r"0001\.wal: LSN \d+ at byte \d+ is broken.*do not start"):
            check_sequence([result])


def test_r12_a_frame_synced_at_a_clean_stop_covers_all_before_it() -> None:
    made = image(PAYLOADS)
    last = made.spans[-1]
    assert scanned(flip(made.data, last[1] - 1)).ending is Ending.TORN
    made.add(b"", last_synced_lsn=made.next_lsn - 1, kind=FrameKind.SYNCED)
    assert scanned(flip(made.data, last[1] - 1)).ending is Ending.CORRUPT


def test_r12_zeroed_sectors_in_the_middle_are_corruption_only_if_synced() -> None:
    made = image(PAYLOADS)
    lost_sync, lost_write = bytearray(made.data), bytearray(made.data)
    start, end = made.spans[2]
    lost_sync[start:end] = bytes(end - start)
    assert scanned(lost_sync).ending is Ending.CORRUPT
    start, end = made.spans[6]
    lost_write[start:end] = bytes(end - start)
    result = scanned(lost_write)
    assert (result.ending, result.frame_count) == (Ending.TORN, 6)


def test_r12_a_frame_missing_altogether_is_a_break() -> None:
    made = image(PAYLOADS)
    start, end = made.spans[7]
    assert scanned(made.data[:start] + made.data[end:]).frame_count == 7
    start, end = made.spans[1]
    assert scanned(made.data[:start] + made.data[end:]).ending is Ending.CORRUPT


@pytest.mark.parametrize("aligned", [True, False])
def test_r12_stale_frames_of_an_older_generation_never_continue_a_tail(aligned: bool) -> None:
    old = image([b"x" * 50] * 20, generation=1)
    new = image([b"y" * (50 if aligned else 41)] * 6, generation=2, first_lsn=21)
    result = scanned(recycled(old, new))
    assert (result.ending, result.frame_count, result.next_lsn) == (Ending.STALE, 6, 27)
    assert check_sequence([result]).next_lsn == 27


def test_r12_not_even_a_stale_frame_with_the_right_lsn_continues_a_tail() -> None:
    old = image([b"x" * 50] * 20, generation=1, first_lsn=1)
    new = image([b"y" * 50] * 4, generation=2, first_lsn=1)  # so that the old frame at the end has LSN 5, as expected
    result = scanned(recycled(old, new))
    assert (result.ending, result.frame_count, result.next_lsn) == (Ending.STALE, 4, 5)


def test_r12_stale_frames_do_not_make_a_break_corrupt() -> None:
    """The old generation's frames say that high LSNs were synced: theirs, not this generation's."""
    old = image([b"x" * 50] * 20, group=1, generation=1, first_lsn=100)
    new = image([b"y" * 50] * 4, generation=2, first_lsn=5)
    assert scanned(flip(recycled(old, new), new.spans[3][0] + 90)).ending is Ending.TORN


def test_frames_of_another_wal_never_count() -> None:
    foreign = WalImage(wal_id=OTHER_WAL)
    foreign.add(b"x" * 50, last_synced_lsn=0)
    mine = image([b"y" * 50] * 3)
    mine.data += foreign.data[FILE_HEADER_BYTES:]
    assert (scanned(mine.data).ending, scanned(mine.data).frame_count) == (Ending.TORN, 3)
    with pytest.raises(CorruptFrame, match=f"belongs to WAL {OTHER_WAL}"):
        scanned(foreign.data)


def test_r12_a_header_older_than_its_frames_is_corruption() -> None:
    made = image(PAYLOADS, generation=5)
    older = encode_file_header(FileHeader(wal_id=WAL, generation=4, first_lsn=1, created_at_ms=START_MS))
    assert scanned(older + made.data[FILE_HEADER_BYTES:]).ending is Ending.CORRUPT


def test_a_payload_that_holds_wal_files_confuses_nobody() -> None:
    """Someone produces a copy of this very WAL file, and the write of that record is torn."""
    first = image(PAYLOADS)
    first.add(bytes(first.data), last_synced_lsn=9)
    assert (scanned(first.data).ending, scanned(first.data).frame_count) == (Ending.CLEAN, 10)
    torn = scanned(first.data[:-10])
    assert (torn.ending, torn.frame_count) == (Ending.TORN, 9)
    check_sequence([torn])


def test_a_frame_of_a_newer_build_stops_recovery_with_its_own_error() -> None:
    made = image(PAYLOADS)
    made.add(b"", last_synced_lsn=0, kind=99)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedVersion):
        scanned(made.data)


def test_a_file_without_a_header_counts_for_nothing() -> None:
    live = image(PAYLOADS, generation=2, first_lsn=10)
    zeros = scanned(bytes(FILE_HEADER_BYTES * 2), "zeros")
    half_recycled = scanned(flip(image(PAYLOADS, generation=1, first_lsn=1).data, 20), "half")
    assert [zeros.ending, half_recycled.ending] == [Ending.NO_HEADER] * 2
    assert (zeros.highest_stray_lsn, half_recycled.highest_stray_lsn) == (0, 9)
    joined = check_sequence([zeros, half_recycled, scanned(live.data)])
    assert [len(joined.live), len(joined.spare), joined.next_lsn] == [1, 2, 19]


def test_r12_a_damaged_header_over_live_frames_is_corruption() -> None:
    before, damaged = image(PAYLOADS), image(PAYLOADS, generation=2, first_lsn=10)
    stray = scanned(flip(damaged.data, 20), "0002.wal")
    for scans in ([scanned(before.data), stray], [stray]):
        with pytest.raises(CorruptFrame, match=r"0002\.wal.*holds frames up to LSN 18"):
            check_sequence(scans)


def test_r12_files_join_in_generation_order_whatever_their_listing() -> None:
    images = [image(PAYLOADS, generation=3 + number, first_lsn=1 + 9 * number) for number in range(3)]
    results = [scanned(made.data + bytes(100)) for made in images]
    joined = check_sequence([results[1], results[2], results[0]])
    assert (joined.live, joined.discarded) == (tuple(results), ())
    assert (joined.next_lsn, joined.next_generation) == (28, 6)


def test_r12_recovery_never_appends_so_the_next_file_starts_at_the_break() -> None:
    torn = scanned(image(PAYLOADS).data[:-5])
    after = scanned(image(PAYLOADS, generation=2, first_lsn=torn.next_lsn).data)
    joined = check_sequence([torn, after])
    assert [result.frame_count for result in joined.live] == [8, 9]
    assert joined.next_lsn == 18


def test_r12_a_file_after_an_unsynced_break_is_discarded() -> None:
    torn = scanned(image(PAYLOADS).data[:-5])
    orphan = WalImage(generation=2, first_lsn=10)
    orphan.add(b"z", last_synced_lsn=6)
    joined = check_sequence([torn, scanned(orphan.data)])
    assert ([len(joined.live), len(joined.discarded)], joined.next_lsn, joined.next_generation) == ([1, 1], 9, 3)
    resumed = scanned(image(PAYLOADS, generation=3, first_lsn=9).data)
    assert check_sequence([torn, scanned(orphan.data), resumed]).next_lsn == 18


def test_r12_a_file_after_a_synced_break_is_corruption() -> None:
    torn = scanned(image(PAYLOADS).data[:-5], "0001.wal")
    after = WalImage(generation=2, first_lsn=10)
    after.add(b"z", last_synced_lsn=9)
    with pytest.raises(CorruptFrame, match=r"0001\.wal: ends before LSN 9.*LSN 9 had been synced"):
        check_sequence([torn, scanned(after.data, "0002.wal")])


def test_r12_a_file_lost_in_the_middle_is_corruption() -> None:
    images = [image(PAYLOADS, generation=1 + number, first_lsn=1 + 9 * number) for number in range(3)]
    with pytest.raises(CorruptFrame, match="had been synced"):
        check_sequence([scanned(images[0].data), scanned(images[2].data)])


def test_r12_overlapping_or_repeated_files_are_corruption() -> None:
    first = scanned(image(PAYLOADS).data)
    with pytest.raises(CorruptFrame, match="starts at LSN 8"):
        check_sequence([first, scanned(image(PAYLOADS, generation=2, first_lsn=8).data)])
    with pytest.raises(CorruptFrame, match="generation 1 appears twice"):
        check_sequence([first, first])


def test_no_files_make_an_empty_sequence() -> None:
    empty = check_sequence([])
    assert (empty.live, empty.next_lsn, empty.next_generation) == ((), None, 1)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_r12_every_crash_keeps_all_synced_frames_and_is_never_taken_for_damage(data: st.DataObject) -> None:
    """A crash loses any sectors written since the last sync, and nothing else; the rest of the file may be stale."""
    payloads = data.draw(st.lists(st.binary(max_size=150), min_size=1, max_size=10))
    old = image([b"old" * 30] * 15, generation=1)
    made = image(payloads, group=data.draw(st.integers(1, 4)), generation=2, first_lsn=16)
    durable = max(made.synced) - 15
    durable_end = made.spans[durable - 1][1] if durable else FILE_HEADER_BYTES
    crashed = bytearray(recycled(old, made).ljust(len(made.data) + 64, b"\0"))
    before = bytes(old.data).ljust(len(crashed), b"\0")
    for start in range(-(-durable_end // 32) * 32, len(crashed), 32):
        if data.draw(st.booleans()):
            crashed[start : start + 32] = before[start : start + 32]
    result = scanned(crashed)
    assert result.ending is not Ending.CORRUPT
    assert durable <= result.frame_count <= len(payloads)
    assert [bytes(frame.payload) for frame in frames(crashed, result)] == payloads[: result.frame_count]


def test_r12_ten_thousand_damages_never_pass_and_never_crash() -> None:
    """Only frames that were written come back, in order and unchanged; covered damage is refused."""
    made = image(PAYLOADS)
    frames_area = FILE_HEADER_BYTES - 64  # most damage should hit frames, not the header's zeros
    verdicts = dict.fromkeys(Ending, 0)
    for kind, tail in damages(bytes(made.data[frames_area:]), count=10_000, seed=20):
        damaged = bytes(made.data[:frames_area]) + tail
        result = scanned(damaged)
        verdicts[result.ending] += 1
        found = [(frame.lsn, bytes(frame.payload)) for frame in frames(damaged, result)]
        assert found == list(enumerate(made.payloads, 1))[: len(found)], kind
        if result.header is None:
            if any(bytes(made.data[start:end]) in damaged for start, end in made.spans):
                with pytest.raises(CorruptFrame):
                    check_sequence([result])
        elif kind in ("flip", "byte", "zero", "noise"):
            touched = next(at for at, (old, new) in enumerate(zip(made.data, damaged, strict=True)) if old != new)
            survivors = [
                synced
                for (start, end), synced in zip(made.spans, made.synced, strict=True)
                if start > touched and damaged[start:end] == made.data[start:end]
            ]
            covered = max(survivors, default=0) >= result.next_lsn
            assert result.frame_count == sum(end <= touched for _, end in made.spans)
            assert (result.ending is Ending.CORRUPT) == covered, kind
    assert min(verdicts[Ending.CORRUPT], verdicts[Ending.TORN]) > 1000
    assert verdicts[Ending.NO_HEADER] > 10


def test_memory_stays_flat_whatever_the_bytes_hold() -> None:
    rng = random.Random(3)
    tail = 16 * MIB
    for hostile in (FRAME_MAGIC * (tail // 64), rng.randbytes(tail // 16), bytes(image(PAYLOADS).data[-900:]) * 4000):
        data = bytes(image(PAYLOADS, generation=2).data) + hostile
        tracemalloc.start()
        try:
            scanned(data)
            assert tracemalloc.get_traced_memory()[1] < 4 * MIB
        finally:
            tracemalloc.stop()

"""Opening a directory: whose it is, what is in it, and everything that is refused."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from pathlib import Path

import pytest
from wal_fake_disk import FakeDisk, PowerCut
from wal_harness import SMALL, TOPIC, a_wal, add, add_many, contents, frames_of, opened

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import CorruptFrame, UnsupportedVersion, WalFailed, WalInUse
from streamhouse.core.limits import KIB
from streamhouse.core.randomness import SeededRandomness
from streamhouse.core.settings import resolve
from streamhouse.formats.wal_frame_v1 import FILE_HEADER_BYTES
from streamhouse.log.wal import TaskPump, WalOptions, open_wal
from streamhouse.log.wal.names import log_name


def names(directory: Path, suffix: str) -> list[str]:
    return sorted(path.name for path in directory.glob(f"*.{suffix}"))


def sizes(directory: Path) -> set[int]:
    return {(directory / name).stat().st_size for suffix in ("wal", "spare") for name in names(directory, suffix)}


async def test_a_frame_comes_back_as_it_was(tmp_path: Path) -> None:
    async with a_wal(tmp_path) as (wal, recovered):
        assert (recovered.frame_count, str(recovered)) == (0, "a new write-ahead log")
        lsn = wal.append(
            topic_id=TOPIC, partition=7, epoch=9, base_offset=1 << 40, timestamp_ms=123, acks=-1, batch=b"the batch"
        )
        wal_id = wal.wal_id
    async with a_wal(tmp_path) as (_, recovered):
        [frame] = frames_of(recovered)
        assert (frame.lsn, bytes(frame.payload)) == (lsn, b"the batch")
        assert (frame.topic_id, frame.partition, frame.epoch) == (TOPIC, 7, 9)
        assert (frame.base_offset, frame.timestamp_ms, frame.acks) == (1 << 40, 123, -1)
        assert (recovered.wal_id, frame.wal_id) == (wal_id, wal_id)
        assert str(recovered) == "write-ahead log recovered: 1 batches (9B) in 1 files"


async def test_what_is_recovered_is_in_lsn_order_over_all_files(tmp_path: Path) -> None:
    async with a_wal(tmp_path) as (wal, _):
        lsns = add_many(wal, 60)
    async with a_wal(tmp_path) as (_, recovered):
        frames = frames_of(recovered)
        assert [frame.lsn for frame in frames] == lsns
        assert [frame.base_offset for frame in frames] == list(range(60))
        assert (recovered.frame_count, recovered.batch_bytes, recovered.file_count) == (60, 60_000, 6)


async def test_lsn_and_generation_go_on_over_restarts(tmp_path: Path) -> None:
    last_lsn = last_generation = 0
    for _ in range(4):
        async with a_wal(tmp_path) as (wal, recovered):
            lsn = add(wal)
            await wal.wait_synced(lsn)
            assert lsn > last_lsn
            generation = max(int(name[:20]) for name in names(tmp_path, "wal"))
            assert generation > last_generation
            last_lsn, last_generation = lsn, generation
            wal.settle([*contents(recovered), lsn])


async def test_an_emptied_wal_keeps_its_place_in_the_sequence(tmp_path: Path) -> None:
    async with a_wal(tmp_path) as (wal, _):
        lsns = add_many(wal, 60)
        await wal.wait_synced(lsns[-1])
        wal.settle(lsns)
    for _ in range(3):
        async with a_wal(tmp_path) as (wal, recovered):
            wal.settle(contents(recovered))
    async with a_wal(tmp_path) as (wal, recovered):
        assert contents(recovered) == {}
        assert add(wal) > lsns[-1]


async def test_views_of_a_recovered_batch_outlive_its_file(tmp_path: Path) -> None:
    async with a_wal(tmp_path) as (wal, _):
        add_many(wal, 5)
    async with a_wal(tmp_path) as (wal, recovered):
        frames = frames_of(recovered)
        wal.settle([frame.lsn for frame in frames])
        add_many(wal, 60)
    assert [bytes(frame.payload[:6]) for frame in frames] == [b"%06d" % number for number in range(5)]
    assert frames_of(recovered) == [], "the WAL itself has let go of it"


async def test_settled_files_of_an_earlier_run_are_removed_and_not_recycled(tmp_path: Path) -> None:
    async with a_wal(tmp_path) as (wal, _):
        add_many(wal, 30)
    before = set(names(tmp_path, "wal"))
    async with a_wal(tmp_path) as (wal, recovered):
        wal.settle(contents(recovered))
        assert wal.metrics.files_removed == len(before)
    assert not before & set(names(tmp_path, "wal"))


async def test_r2_two_opens_of_one_directory_are_refused(tmp_path: Path) -> None:
    async with a_wal(tmp_path):
        with pytest.raises(WalInUse, match=rf"in use by process {os.getpid()}.*--data-dir"):
            await opened(tmp_path)
    async with a_wal(tmp_path):
        pass


async def test_r2_files_without_an_id_are_refused(tmp_path: Path) -> None:
    async with a_wal(tmp_path) as (wal, _):
        add(wal)
    (tmp_path / "wal.id").unlink()
    with pytest.raises(CorruptFrame, match=r"holds WAL files, but no wal\.id"):
        await opened(tmp_path)


async def test_r2_an_id_without_files_is_refused(tmp_path: Path) -> None:
    async with a_wal(tmp_path) as (wal, _):
        add(wal)
        wal_id = wal.wal_id
    for name in names(tmp_path, "wal"):
        (tmp_path / name).unlink()
    with pytest.raises(CorruptFrame, match=f"WAL {wal_id} lives here, but its files are gone"):
        await opened(tmp_path)


async def test_r2_anothers_files_are_refused(tmp_path: Path) -> None:
    for seed, place in enumerate(("mine", "theirs")):
        wal, _ = await opened(tmp_path / place, seed=seed)
        add(wal)
        await wal.close()
    shutil.copy(tmp_path / "theirs" / log_name(1), tmp_path / "mine" / log_name(9))
    with pytest.raises(CorruptFrame, match=r"belongs to WAL .*this data directory holds another's file"):
        await opened(tmp_path / "mine")


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (b"", CorruptFrame, "does not hold a WAL's id"),
        (b"streamhouse wal 1\nnot-a-uuid\n", CorruptFrame, "does not hold a WAL's id"),
        (bytes(55), CorruptFrame, "does not hold a WAL's id"),
        (b"x" * 5000, CorruptFrame, "has 5000 bytes"),
        (b"streamhouse wal 2\nsomething else\n", UnsupportedVersion, "version '2'.*upgrade"),
    ],
)
async def test_a_damaged_id_is_refused(tmp_path: Path, text: bytes, error: type[Exception], message: str) -> None:
    async with a_wal(tmp_path):
        pass
    (tmp_path / "wal.id").write_bytes(text)
    with pytest.raises(error, match=message):
        await opened(tmp_path)


async def test_a_log_file_under_a_name_of_no_meaning_is_refused_and_strangers_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("keep me")
    async with a_wal(tmp_path):
        pass
    assert (tmp_path / "notes.txt").read_text() == "keep me"
    shutil.copy(tmp_path / log_name(1), tmp_path / "copy of 1.wal")
    with pytest.raises(CorruptFrame, match=r"copy of 1\.wal, which is no name of a WAL file"):
        await opened(tmp_path)


async def test_r12_a_renamed_file_is_refused(tmp_path: Path) -> None:
    async with a_wal(tmp_path):
        pass
    (tmp_path / log_name(1)).rename(tmp_path / log_name(4))
    with pytest.raises(CorruptFrame, match="its header is of generation 1, its name says 4"):
        await opened(tmp_path)


async def test_r12_a_log_file_without_an_intact_header_is_damage(tmp_path: Path) -> None:
    """Also where its frames are older than others', so that the scan alone would take it for an emptied one."""
    async with a_wal(tmp_path) as (wal, _):
        add_many(wal, 30)
    path = tmp_path / log_name(1)
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFrame, match=r"0001\.wal: WAL file header.*do not start"):
        await opened(tmp_path)


async def test_r12_a_missing_file_in_the_middle_is_damage(tmp_path: Path) -> None:
    async with a_wal(tmp_path) as (wal, _):
        for _ in range(3):
            await wal.wait_synced(add_many(wal, 12)[-1])
    (tmp_path / log_name(2)).unlink()
    with pytest.raises(CorruptFrame, match="had been synced"):
        await opened(tmp_path)


async def test_leftovers_of_an_unfinished_file_are_swept_up(tmp_path: Path) -> None:
    async with a_wal(tmp_path):
        pass
    (tmp_path / "00000000000000000009.spare.new").write_bytes(bytes(77))
    (tmp_path / "00000000000000000009.wal.new").write_bytes(bytes(77))
    (tmp_path / "00000000000000000033.spare").write_bytes(bytes(77))
    async with a_wal(tmp_path) as (wal, _):
        await wal.wait_synced(add_many(wal, 60)[-1])
    assert names(tmp_path, "new") == []
    assert sizes(tmp_path) == {SMALL.file_bytes}


async def test_another_file_size_is_taken_up_at_the_next_start(tmp_path: Path) -> None:
    async with a_wal(tmp_path) as (wal, _):
        lsns = add_many(wal, 30)
    larger = WalOptions(file_bytes=64 * KIB, max_bytes=256 * KIB)
    async with a_wal(tmp_path, options=larger) as (wal, recovered):
        assert list(contents(recovered)) == lsns
        wal.settle(lsns)
    assert sizes(tmp_path) == {64 * KIB}


async def test_the_settings_are_its_options(tmp_path: Path) -> None:
    found = resolve(flags={"wal.file_bytes": "2MiB", "wal.max_bytes": "1GiB", "wal.max_batch_age": "3ms"}).require()
    options = WalOptions.of(found.settings.wal)
    assert (options.file_bytes, options.max_bytes, options.max_batch_age_ms) == (2 << 20, 1 << 30, 3)
    wal, _ = await open_wal(tmp_path / "w", clock=ManualClock(), randomness=SeededRandomness(1), options=options)
    await wal.close()


async def test_a_directory_that_cannot_be_used_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WalFailed, match=r"write-ahead log in .*file/wal cannot be opened"):
        await opened(tmp_path / "file" / "wal")


async def test_a_failed_open_frees_the_directory() -> None:
    disk = FakeDisk()
    disk.fail("sync_directory")
    with pytest.raises(WalFailed, match="cannot be opened"):
        await opened(disk, pump=TaskPump())
    assert not disk.locked


@pytest.mark.parametrize("seed", range(4))
async def test_a_first_start_may_be_cut_off_at_any_point(seed: int) -> None:
    """It is finished by the next one; at no point is it mistaken for a WAL whose files are gone."""
    rng = random.Random(seed)
    cut_at = 0
    while True:
        disk = FakeDisk()
        disk.operations_left = cut_at
        try:
            wal, _ = await opened(disk, pump=TaskPump())
        except PowerCut:
            disk = disk.survivor(rng)
            async with a_wal(disk, pump=TaskPump()) as (wal, recovered):
                assert contents(recovered) == {}
                assert add(wal) <= 3
            cut_at += 1
            continue
        disk.operations_left = 1000
        await wal.close()
        break
    assert cut_at > 10


async def test_r12_what_was_recovered_is_synced_before_anyone_relies_on_it() -> None:
    """Killed with frames in the page cache only; replayed; then the power goes."""
    disk = FakeDisk()

    async def hang() -> None:
        await asyncio.Event().wait()

    wal, _ = await opened(disk, pump=(pump := TaskPump(pause=hang)))
    lsns = add_many(wal, 5)
    await asyncio.sleep(0)
    pump.kill()
    disk.unlock()
    second, recovered = await opened(disk, pump=TaskPump(pause=hang))
    assert list(contents(recovered)) == lsns
    disk = disk.survivor(random.Random(1))
    async with a_wal(disk, pump=TaskPump()) as (_, recovered):
        assert list(contents(recovered)) == lsns
    assert second.synced_lsn == lsns[-1]


async def test_r12_damage_to_what_was_recovered_is_noticed_at_the_next_start(tmp_path: Path) -> None:
    """Nothing was appended in between: the mark that opening leaves behind tells."""
    async with a_wal(tmp_path) as (wal, _):
        add_many(wal, 3)
    async with a_wal(tmp_path):
        pass
    path = tmp_path / log_name(1)
    data = bytearray(path.read_bytes())
    data[FILE_HEADER_BYTES + 500] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFrame, match="had been synced"):
        await opened(tmp_path)

"""Whose WAL it is: an id that is made once, and files that must belong to it (R2)."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest
from wal_fake_disk import FakeDisk, PowerCut
from wal_harness import SMALL, Place, a_wal, add, contents, opened

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import (
    CorruptFrame,
    DurabilityMismatch,
    UnsupportedVersion,
)
from streamhouse.core.randomness import SeededRandomness
from streamhouse.log.wal import TaskPump, Wal, open_wal
from streamhouse.log.wal.identity import Identity, bind_to_cluster, confirm_identity, load_or_make_identity
from streamhouse.log.wal.names import log_name, sort_listing


def names(directory: Path, suffix: str) -> list[str]:
    return sorted(path.name for path in directory.glob(f"*.{suffix}"))


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


async def test_r2_a_wal_remembers_whose_records_it_holds(place: Place) -> None:
    mine, theirs = UUID(int=1), UUID(int=2)

    async def start(cluster_id: UUID) -> Wal:
        disk, pump = place()
        clock, randomness = ManualClock(), SeededRandomness(1)
        wal, _ = await open_wal(
            disk, clock=clock, randomness=randomness, options=SMALL, pump=pump, cluster_id=cluster_id
        )
        return wal

    await (await start(theirs)).close()
    wal = await start(mine)  # there was nothing in it but marks
    await wal.wait_synced(add(wal, b"precious"))
    await wal.close()
    for _ in range(2):
        with pytest.raises(DurabilityMismatch, match="holds records of cluster"):
            await start(theirs)
    await (await start(mine)).close()


async def test_a_start_that_crashed_while_it_noted_the_cluster_is_finished(tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / "wal.cluster.new").write_bytes(b"half")
    clock, randomness = ManualClock(), SeededRandomness(1)
    wal, _ = await open_wal(tmp_path / "wal", clock=clock, randomness=randomness, options=SMALL, cluster_id=UUID(int=7))
    await wal.close()
    assert str(UUID(int=7)) in (tmp_path / "wal" / "wal.cluster").read_text()


def identity_of(disk: FakeDisk, *, seed: int = 1) -> Identity:
    directory = sort_listing(disk.listing(), disk.place)
    return load_or_make_identity(disk, directory, SeededRandomness(seed))


def test_r2_an_id_is_made_once_and_counts_from_the_first_log_file_on() -> None:
    disk = FakeDisk()
    made = identity_of(disk)
    assert (set(disk.durable_names), made.confirmed) == ({"wal.id.new"}, False)
    assert identity_of(disk, seed=2) == made, "a first start that crashed is finished with the same id"
    disk.create(log_name(1), 10)
    confirm_identity(disk)
    assert "wal.id" in disk.durable_names
    assert identity_of(disk, seed=3) == Identity(wal_id=made.wal_id, confirmed=True)


@pytest.mark.parametrize("with_files", [False, True])
def test_a_half_written_id_of_a_first_start_is_made_again_unless_there_are_files(with_files: bool) -> None:
    disk = FakeDisk()
    disk.create("wal.id.new", 55)
    if with_files:
        disk.create(log_name(1), 10)
        with pytest.raises(CorruptFrame, match="does not hold a WAL's id"):
            identity_of(disk)
    else:
        assert identity_of(disk).wal_id == SeededRandomness(1).uuid()


@pytest.mark.parametrize("cut_at", range(12))
def test_r2_noting_another_cluster_may_be_cut_off_at_any_point(cut_at: int) -> None:
    """An empty log changes its cluster. The next start finishes that, whatever was done of it."""
    mine, theirs = UUID(int=1), UUID(int=2)
    for seed in range(10):
        disk = FakeDisk()
        bind_to_cluster(disk, disk.listing(), theirs, has_frames=False)
        disk.operations_left = cut_at
        with suppress(PowerCut):
            bind_to_cluster(disk, disk.listing(), mine, has_frames=False)
        after = disk.survivor(random.Random(seed))
        bind_to_cluster(after, after.listing(), mine, has_frames=False)
        bind_to_cluster(after, after.listing(), mine, has_frames=True)
        with pytest.raises(DurabilityMismatch):
            bind_to_cluster(after, after.listing(), theirs, has_frames=True)


def test_r2_a_log_of_a_build_that_noted_no_cluster_is_taken_for_that_of_the_store() -> None:
    disk = FakeDisk()
    bind_to_cluster(disk, disk.listing(), UUID(int=1), has_frames=True)
    assert str(UUID(int=1)).encode() in bytes(disk.names["wal.cluster"].durable)

"""The simulated disk: what a kill keeps, what a power cut may take, and how disks fail."""

from __future__ import annotations

import errno

import pytest

from simulator.dice import Dice
from simulator.disk import SimDisk
from simulator.ledger import WalLedger
from streamhouse.core.errors import WalInUse


def disk(seed: int = 1) -> SimDisk:
    made = SimDisk("machine", Dice(seed))
    made.lock()
    made.create("a.wal", 4096)
    made.sync_directory()
    return made


def content(made: SimDisk) -> bytes:
    return bytes(made.read("a.wal"))


def test_a_killed_process_loses_nothing_it_wrote() -> None:
    made = disk()
    made.open("a.wal").pwritev([b"unsynced"], 0)
    made.process_died()
    made.lock()
    assert content(made).startswith(b"unsynced")


def test_a_power_cut_keeps_what_was_synced_and_any_sectors_of_the_rest() -> None:
    survivors = set()
    for seed in range(60):
        made = disk(seed)
        file = made.open("a.wal")
        file.pwritev([b"s" * 512], 0)
        file.fdatasync()
        file.pwritev([b"u" * 1024], 512)
        made.process_died()
        made.power_cut()
        after = content(made)
        assert after[:512] == b"s" * 512
        survivors.add((after[512:1024] == b"u" * 512, after[1024:1536] == b"u" * 512))
    assert survivors == {(False, False), (False, True), (True, False), (True, True)}


def test_a_power_cut_undoes_unsynced_names_from_the_last_on() -> None:
    found = set()
    for seed in range(40):
        made = disk(seed)
        made.create("b.wal", 10)
        made.rename("b.wal", "c.wal")
        made.process_died()
        made.power_cut()
        found.add(tuple(sorted(listed.name for listed in made.listing())))
    assert found == {("a.wal",), ("a.wal", "b.wal"), ("a.wal", "c.wal")}


def test_a_failed_sync_forgets_what_it_should_have_written() -> None:
    for seed in range(20):
        made = disk(seed)
        file = made.open("a.wal")
        file.pwritev([b"x" * 512], 0)
        made.failing = "sync"
        with pytest.raises(OSError, match="EIO"):
            file.fdatasync()
        made.failing = ""
        file.fdatasync()
        if content(made)[:512] == bytes(512):
            return
    pytest.fail("a failed sync never lost anything")


def test_a_full_disk_refuses_new_files_only() -> None:
    made = disk()
    made.failing = "create"
    with pytest.raises(OSError, match="ENOSPC") as raised:
        made.create("b.wal", 10)
    assert raised.value.errno == errno.ENOSPC
    made.open("a.wal").pwritev([b"fine"], 0)


def test_one_process_at_a_time_and_none_after_its_death() -> None:
    made = disk()
    with pytest.raises(WalInUse):
        made.lock()
    file = made.open("a.wal")
    made.process_died()
    with pytest.raises(AssertionError, match="a dead process writes"):
        file.pwritev([b"late"], 0)


def test_rot_flips_one_bit() -> None:
    made = disk()
    before = content(made)
    made.rot()
    after = content(made)
    assert sum((one ^ other).bit_count() for one, other in zip(before, after, strict=True)) == 1


@pytest.mark.parametrize(
    ("recovered", "wrong"),
    [
        ([(2, b"two")], []),  # settled and unsynced frames need not come back
        ([(1, b"one"), (2, b"two"), (3, b"three")], []),
        ([(2, b"two"), (9, b"nine")], ["LSN 9 was recovered and never written"]),
        ([(2, b"TWO")], ["LSN 2 was recovered with another batch than was written"]),
        ([], ["LSNs [2] were synced, not settled, and are gone"]),
    ],
)
def test_r12_the_ledger_knows_what_must_come_back(recovered: list[tuple[int, bytes]], wrong: list[str]) -> None:
    ledger = WalLedger()
    for lsn, batch in ((1, b"one"), (2, b"two"), (3, b"three")):
        ledger.write(lsn, batch)
    ledger.synced(2)
    ledger.settled([1])
    assert ledger.judge(recovered) == wrong


def test_r12_what_came_back_once_must_come_back_again() -> None:
    ledger = WalLedger()
    ledger.write(1, b"one")
    assert ledger.judge([(1, b"one")]) == [], "never synced by its own process, but found and synced by this one"
    assert ledger.judge([]) == ["LSNs [1] were synced, not settled, and are gone"]

"""The names in a WAL's directory: built, parsed and sorted; a name that only looks like one is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from wal_harness import a_wal, opened

from streamhouse.core.errors import CorruptFrame
from streamhouse.log.wal.disk import Listed
from streamhouse.log.wal.names import log_name, sort_listing, spare_name, unfinished_name


async def test_a_log_file_under_a_name_of_no_meaning_is_refused_and_strangers_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("keep me")
    async with a_wal(tmp_path):
        pass
    assert (tmp_path / "notes.txt").read_text() == "keep me"
    shutil.copy(tmp_path / log_name(1), tmp_path / "copy of 1.wal")
    with pytest.raises(CorruptFrame, match=r"copy of 1\.wal, which is no name of a WAL file"):
        await opened(tmp_path)


def listed(*names: str, size_bytes: int = 10) -> list[Listed]:
    return [Listed(name=name, size_bytes=size_bytes) for name in names]


def test_names_sort_as_their_numbers_do() -> None:
    numbers = [0, 9, 10, 999, 2**63 - 1]
    assert sorted(map(log_name, reversed(numbers))) == [log_name(number) for number in numbers]
    assert log_name(7) == "00000000000000000007.wal"
    assert unfinished_name(spare_name(3)) == "00000000000000000003.spare.new"


def test_a_directory_is_sorted_by_kind_and_log_files_by_generation() -> None:
    found = sort_listing(
        listed(
            log_name(12),
            spare_name(4),
            log_name(3),
            unfinished_name(log_name(13)),
            unfinished_name(spare_name(5)),
            "wal.id",
            "wal.cluster",
            "wal.lock",
        ),
        "/wal",
    )
    assert list(found.log_files) == [3, 12]
    assert found.log_files[12].name == log_name(12)
    assert list(found.spares) == [4]
    assert sorted(found.unfinished) == sorted([unfinished_name(log_name(13)), unfinished_name(spare_name(5))])
    assert found.id_file is not None
    assert found.unconfirmed_id_file is None
    assert not found.is_empty


@pytest.mark.parametrize(
    ("names", "is_empty"),
    [
        ((), True),
        (("wal.lock", "wal.cluster", "notes.txt"), True),
        ((unfinished_name(log_name(1)),), True),
        (("wal.id",), False),
        (("wal.id.new",), False),
        ((log_name(1),), False),
        ((spare_name(1),), False),
    ],
)
def test_r2_only_a_directory_without_any_trace_of_a_wal_is_empty(names: tuple[str, ...], is_empty: bool) -> None:
    assert sort_listing(listed(*names), "/wal").is_empty is is_empty


@pytest.mark.parametrize("name", ["7.wal", "000000000000000000007.wal", "0000000000000000000x.wal", ".wal"])
def test_a_name_that_only_looks_like_a_log_file_is_refused(name: str) -> None:
    """It may hold frames that nothing would recover."""
    with pytest.raises(CorruptFrame, match=r"/wal holds .* which is no name of a WAL file.*move it out"):
        sort_listing(listed(log_name(1), name), "/wal")


def test_strangers_are_ignored() -> None:
    found = sort_listing(listed("notes.txt", "7.spare", "x.new", "00000000000000000001.wal.old"), "/wal")
    assert (found.log_files, found.spares, found.unfinished) == ({}, {}, ())

"""S2.8: many plain batches are taken at once, with the checks that each of them would have had by itself."""

from __future__ import annotations

import importlib
import random

import pytest
from format_samples import START_MS, batch_run, make_batch
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.errors import StreamHouseError
from streamhouse.formats import batch_runs
from streamhouse.formats.batch_runs import PlacedBatches, run_of, take_run
from streamhouse.formats.shared_blob_v1 import UNPLACED_EPOCH, UNPLACED_OFFSET
from streamhouse.wire.batch import BatchHeader, patch, validate

NO_ROOM_LIMIT = 1 << 40
LAST_OFFSET = 1 << 40


def test_the_loop_is_compiled_where_tests_run() -> None:
    assert batch_runs.IS_COMPILED, "without a C compiler the tests below prove nothing"


def taken_singly(data: bytearray, *, room_bytes: int, next_offset: int, last_offset: int, epoch: int | None) -> bytes:
    """What ``take_run`` is measured by: the batches as batch.py judges them, at their places."""
    position = 0
    while position < len(data):
        try:
            header = validate(data, position)
        except StreamHouseError:
            break
        place = (UNPLACED_OFFSET, UNPLACED_EPOCH) if epoch is not None else (next_offset, header.partition_leader_epoch)
        fits = header.size <= room_bytes and next_offset + header.last_offset_delta <= last_offset
        if (header.base_offset, header.partition_leader_epoch) != place or not fits:
            break
        if epoch is not None:
            patch(data, position, base_offset=next_offset, leader_epoch=epoch)
        next_offset += header.record_count
        room_bytes -= header.size
        position += header.size
    return bytes(data[:position])


def unplaced(batches: list[bytes]) -> bytearray:
    joined = bytearray()
    for batch in batches:
        there = bytearray(batch)
        patch(there, 0, base_offset=UNPLACED_OFFSET, leader_epoch=UNPLACED_EPOCH)
        joined += there
    return joined


def headers_of(data: bytes) -> list[BatchHeader]:
    headers, position = [], 0
    while position < len(data):
        headers.append(validate(data, position))
        position += headers[-1].size
    return headers


def check_run(run: PlacedBatches | None, data: bytearray, expected: bytes, next_offset: int) -> None:
    if run is None:
        assert expected == b""
        return
    assert bytes(data[: run.size]) == expected
    singles = [run_of(header) for header in headers_of(expected)]
    assert (run.base_offset, run.end_offset) == (next_offset, singles[-1].end_offset)
    assert run.record_count == sum(single.record_count for single in singles)
    assert run.min_timestamp_ms == min(single.min_timestamp_ms for single in singles)
    assert run.max_timestamp_ms == max(single.max_timestamp_ms for single in singles)
    assert run.has_plain_batches == any(single.has_plain_batches for single in singles)


@given(
    seed=st.integers(0, 2**32),
    epoch=st.none() | st.integers(0, 2**31 - 1),
    damage=st.none() | st.tuples(st.integers(0, 4_000), st.integers(1, 255)),
    cut=st.integers(0, 100),
    room_bytes=st.just(NO_ROOM_LIMIT) | st.integers(0, 3_000),
    last_offset=st.just(LAST_OFFSET) | st.integers(95, 150),
)
def test_invariant_6_a_run_is_what_the_batches_are_one_by_one(
    seed: int, epoch: int | None, damage: tuple[int, int] | None, cut: int, room_bytes: int, last_offset: int
) -> None:
    batches = batch_run(count=8, seed=seed, base_offset=100, leader_epoch=7)
    data = unplaced(batches) if epoch is not None else bytearray(b"".join(batches))
    if damage is not None:
        data[damage[0] % len(data)] ^= damage[1]
    del data[len(data) - cut :]
    expected = taken_singly(
        bytearray(data), room_bytes=room_bytes, next_offset=100, last_offset=last_offset, epoch=epoch
    )
    run = take_run(
        memoryview(data), 0, room_bytes=room_bytes, next_offset=100, last_offset=last_offset, leader_epoch=epoch
    )
    check_run(run, data, expected, 100)


@given(
    changes=st.fixed_dictionaries(
        {},
        optional={
            "attributes": st.integers(-(2**15), 2**15 - 1),
            "count": st.integers(1, 200),
            "records": st.integers(-(2**31), 2**31 - 1),
            "first_ms": st.integers(-(2**63), 2**63 - 1),
            "max_ms": st.integers(-(2**63), 2**63 - 1),
            "base_offset": st.integers(0, 2**63 - 1),
        },
    )
)
def test_invariant_6_a_batch_with_any_fields_under_a_right_crc_is_judged_alike(changes: dict[str, int]) -> None:
    data = bytearray(make_batch(**{"base_offset": 5, **changes}, payload=bytes(100)))  # type: ignore[arg-type]
    expected = taken_singly(
        bytearray(data), room_bytes=NO_ROOM_LIMIT, next_offset=5, last_offset=LAST_OFFSET, epoch=None
    )
    run = take_run(memoryview(data), 0, room_bytes=NO_ROOM_LIMIT, next_offset=5, last_offset=LAST_OFFSET)
    check_run(run, data, expected, 5)


def test_a_run_begins_anywhere_and_changes_nothing_around_it() -> None:
    batches = unplaced(batch_run(count=3, seed=1))
    data = bytearray(b"before") + batches + b"behind"
    run = take_run(
        memoryview(data), 6, room_bytes=NO_ROOM_LIMIT, next_offset=40, last_offset=LAST_OFFSET, leader_epoch=3
    )
    assert run is not None
    assert run.size == len(batches)
    assert data[:6] + data[-6:] == b"beforebehind"
    headers = headers_of(bytes(data[6:-6]))
    assert headers[0].base_offset == 40
    assert {header.partition_leader_epoch for header in headers} == {3}


def test_read_only_batches_that_have_their_places_are_taken_as_they_are() -> None:
    data = memoryview(make_batch(base_offset=9, first_ms=START_MS))
    run = take_run(data, 0, room_bytes=NO_ROOM_LIMIT, next_offset=9, last_offset=LAST_OFFSET)
    assert run == run_of(validate(data))


def test_without_the_compiled_loop_there_are_no_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMHOUSE_PURE", "1")
    assert batch_runs._compiled() is None
    monkeypatch.delenv("STREAMHOUSE_PURE")

    def missing(name: str) -> None:
        raise ModuleNotFoundError(name, name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    assert batch_runs._compiled() is None
    monkeypatch.setattr(batch_runs, "_walk", None)
    data = memoryview(make_batch())
    assert take_run(data, 0, room_bytes=NO_ROOM_LIMIT, next_offset=0, last_offset=LAST_OFFSET) is None


def test_a_build_of_the_loop_that_lacks_something_else_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STREAMHOUSE_PURE", raising=False)

    def broken(name: str) -> None:
        raise ModuleNotFoundError(name, name="streamhouse.wire.gone")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError):
        batch_runs._compiled()


def test_many_batches_are_one_run() -> None:
    rng = random.Random(2)
    data = bytearray(b"".join(batch_run(count=200, seed=rng.randrange(99))))
    run = take_run(memoryview(data), 0, room_bytes=NO_ROOM_LIMIT, next_offset=0, last_offset=LAST_OFFSET)
    assert run is not None
    assert run.size == len(data)

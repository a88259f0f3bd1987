"""The map of keys: right for any keys, and never larger than it was made. With both twins."""

from __future__ import annotations

import struct
from array import array
from itertools import accumulate
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keyed_logs import KeyGround, compact, keyed_log, loops_twin

from streamhouse.core.errors import ConfigError, InvalidRequest
from streamhouse.maintenance.key_compaction import compactor, key_map
from streamhouse.maintenance.key_compaction.key_map import BYTES_PER_KEY, KeyMap
from streamhouse.maintenance.key_compaction.plan import KeyRules
from streamhouse.wire.batch import HEADER_BYTES, validate
from streamhouse.wire.record_keys import RecordKeys
from streamhouse.wire.records import Record, build_batch

COMPILED = loops_twin("_key_loops")
KEYS = st.binary(max_size=3)
BATCHES = st.lists(st.lists(st.none() | KEYS, min_size=1, max_size=40), max_size=5)
for_each_twin = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture(params=["_key_loops", "_key_loops_py"], autouse=True)
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Runs each test twice, with the compiled twin and with the pure one."""
    twin = loops_twin(request.param)
    monkeypatch.setattr(key_map, "loops", twin)
    return twin


def keys_of(keys: list[bytes | None], base_offset: int) -> RecordKeys:
    batch = build_batch([Record(key=key, value=b"v") for key in keys], base_offset=base_offset)
    return RecordKeys(memoryview(batch)[HEADER_BYTES:], validate(batch), values=False)


@for_each_twin
@given(st.lists(KEYS, max_size=60), st.integers(1, 20))
def test_p4_the_newest_offset_of_each_key_is_known_until_the_map_is_full(keys: list[bytes], room: int) -> None:
    found, expected = KeyMap(room), {}
    for offset, key in enumerate(keys):
        fits = key in expected or len(expected) < room
        assert found.put(key, offset) is fits
        if fits:
            expected[key] = offset
    assert len(found) == len(expected) <= room
    assert sorted(found.newest_offsets()) == sorted(expected.values())
    for key in {*keys, b"never"}:
        newest = expected.get(key, -1)
        for offset in range(len(keys)):
            assert found.is_superseded(key, offset) is (newest > offset)


@for_each_twin
@given(st.lists(KEYS, max_size=60), st.integers(1, 5))
def test_p4_shards_divide_the_keys_and_lose_none(keys: list[bytes], shards: int) -> None:
    maps = [KeyMap(100, shard=shard, shards=shards) for shard in range(shards)]
    for offset, key in enumerate(keys):
        for one in maps:
            assert one.put(key, offset)
    newest = {key: offset for offset, key in enumerate(keys)}
    assert sorted(offset for one in maps for offset in one.newest_offsets()) == sorted(newest.values())
    assert sum(map(len, maps)) == len(newest)


def test_p4_its_memory_is_what_its_number_of_keys_costs() -> None:
    made = KeyMap(30_000)
    size_bytes = made.size_bytes
    assert size_bytes <= 30_001 * BYTES_PER_KEY
    for offset in range(30_000):
        assert made.put(b"%d" % offset, offset)
    assert not made.put(b"one more", 30_000)
    assert made.put(b"7", 30_001)
    assert made.is_superseded(b"7", 30_000)
    assert made.size_bytes == size_bytes


@for_each_twin
@given(BATCHES, st.integers(1, 12))
def test_p4_batches_are_mapped_as_their_records_one_by_one(batches: list[list[bytes | None]], room: int) -> None:
    found, expected, base = KeyMap(room, secret=b"0123456789abcdef"), {}, 0
    for batch in batches:
        fits = True
        for offset, key in enumerate(batch, base):
            fits = key is None or key in expected or len(expected) < room
            if not fits:
                break
            if key is not None:
                expected[key] = offset
        assert found.put_all(keys_of(batch, base)) is fits
        base += len(batch)
        if not fits:
            break
    assert sorted(found.newest_offsets()) == sorted(expected.values())
    base = 0
    for batch in batches:
        flags = found.superseded(keys_of(batch, base))
        for offset, key in enumerate(batch, base):
            assert key is None or flags[offset - base] == (expected.get(key, -1) > offset)
        base += len(batch)


@pytest.mark.parametrize("shared", [0, 1], ids=["upper", "lower"])
def test_p4_keys_whose_hashes_share_a_half_are_different_keys(shared: int, loops: ModuleType) -> None:
    slots = loops.KeySlots(10, 0, 1)
    slot_count = slots.size_bytes // 24
    halves = [[7, number * slot_count] for number in range(10)]
    """All belong into the same slot."""
    hashes = b"".join(struct.pack("=QQ", *(pair if shared == 0 else reversed(pair))) for pair in halves)
    offsets = array("q", range(10))
    assert slots.put(hashes, offsets, bytes(10))
    assert not any(slots.superseded(hashes, offsets))
    assert sorted(slots.newest_offsets()) == list(offsets)


@for_each_twin
@given(st.lists(KEYS, max_size=40))
def test_p4_a_key_has_another_hash_under_another_secret(keys: list[bytes]) -> None:
    loops = key_map.loops
    bounds = array("i", [0, *accumulate(map(len, keys))])
    hashes, others = (loops.hash_keys(secret * 16, b"".join(keys), bounds) for secret in (b"a", b"b"))
    alone = [loops.hash_keys(b"a" * 16, key, array("i", [0, len(key)])) for key in keys]
    assert hashes == b"".join(alone)
    assert len(set(alone)) == len(set(keys))
    assert all(hashes[at : at + 16] != others[at : at + 16] for at in range(0, len(hashes), 16))


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
        (7, "a1f1ebbed8dbc153c0b84aa61ff08239"),
        (8, "3b62a9ba6258f5610f83e264f31497b4"),
        (15, "5493e99933b0a8117e08ec0f97cfc3d9"),
        (16, "6ee2a4ca67b054bbfd3315bf85230577"),
        (63, "5150d1772f50834a503e069a973fbd7c"),
    ],
)
def test_p4_the_compiled_hash_is_siphash_2_4_of_16_bytes(length: int, expected: str) -> None:
    """The numbers are those of its authors' reference implementation and of OpenSSL."""
    key = bytes(range(length))
    assert COMPILED.hash_keys(bytes(range(16)), key, array("i", [0, length])).hex() == expected


@pytest.mark.parametrize("bounds", [[1, 0], [0, 4], [-1, 2], [0, 2, 1]])
def test_bounds_outside_the_keys_are_refused(bounds: list[int], loops: ModuleType) -> None:
    with pytest.raises(InvalidRequest, match=f"the bounds of key {len(bounds) - 2}"):
        loops.hash_keys(bytes(16), b"abc", array("i", bounds))


def test_arrays_that_do_not_fit_each_other_are_refused(loops: ModuleType) -> None:
    slots, two = loops.KeySlots(10, 0, 1), array("q", [1, 2])
    with pytest.raises(InvalidRequest, match="15 bytes"):
        loops.hash_keys(bytes(15), b"", array("i", [0]))
    with pytest.raises(InvalidRequest, match="without bounds"):
        loops.hash_keys(bytes(16), b"", array("i"))
    for hashes in (bytes(16), bytes(33)):
        with pytest.raises(InvalidRequest, match="for 2 offsets"):
            slots.put(hashes, two, bytes(2))
        with pytest.raises(InvalidRequest, match="for 2 offsets"):
            slots.superseded(hashes, two)
    with pytest.raises(InvalidRequest, match="1 flags for 2 records"):
        slots.put(bytes(32), two, bytes(1))
    assert len(slots) == 0


async def test_p4_maps_have_secrets_of_their_own_and_shards_that_divide_keys_share_one(
    sqlite_ground: KeyGround, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets: dict[int, list[bytes]] = {}

    class Watched(KeyMap):
        def __init__(self, max_keys: int, *, secret: bytes, shard: int = 0, shards: int = 1) -> None:
            secrets.setdefault(shards, []).append(secret)
            super().__init__(max_keys, secret=secret, shard=shard, shards=shards)

    monkeypatch.setattr(compactor, "KeyMap", Watched)
    log = await keyed_log(sqlite_ground, [(b"%d" % n, b"v") for n in range(40)], [(b"last", b"v")])
    await compact(sqlite_ground, log, rules=KeyRules(map_bytes=16 * BYTES_PER_KEY))
    assert len(secrets) > 1, "one map for all, then one for each shard"
    assert all(len(set(shared)) == 1 for shared in secrets.values())
    different = {shared[0] for shared in secrets.values()}
    assert len(different) == len(secrets)
    assert all(len(secret) == 16 and any(secret) for secret in different)


def test_a_map_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError):
        KeyMap(0)

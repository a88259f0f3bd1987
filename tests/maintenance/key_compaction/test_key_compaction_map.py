"""The map of keys: right for any keys, and never larger than it was made."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.errors import ConfigError
from streamhouse.maintenance.key_compaction.key_map import BYTES_PER_KEY, KeyMap

KEYS = st.binary(max_size=3)


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
    arrays = (made._upper, made._lower, made._nexts)
    assert sum(array.nbytes for array in arrays) <= 30_001 * BYTES_PER_KEY
    for offset in range(30_000):
        assert made.put(b"%d" % offset, offset)
    assert not made.put(b"one more", 30_000)
    assert made.put(b"7", 30_001)
    assert made.is_superseded(b"7", 30_000)
    assert (made._upper, made._lower, made._nexts) == arrays


@pytest.mark.parametrize("shared", [slice(0, 8), slice(8, 16)], ids=["upper", "lower"])
def test_p4_keys_whose_hashes_share_a_half_are_different_keys(shared: slice, monkeypatch: pytest.MonkeyPatch) -> None:
    class HalfAlike:
        def __init__(self, key: bytes, *, digest_size: int) -> None:
            self._digest = bytearray(key * 2)
            self._digest[shared] = b"the same"

        def digest(self) -> bytes:
            return bytes(self._digest)

    monkeypatch.setattr("streamhouse.maintenance.key_compaction.key_map.blake2b", HalfAlike)
    made = KeyMap(10)
    keys = [(number * made._slots).to_bytes(8, sys.byteorder) for number in range(10)]
    """All belong into the same slot."""
    for offset, key in enumerate(keys):
        assert made.put(key, offset)
    assert not any(made.is_superseded(key, offset) for offset, key in enumerate(keys))
    assert len(made) == len(keys)


def test_a_map_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError):
        KeyMap(0)

"""Kafka's murmur2: its own vectors, and agreement with two clients."""

from __future__ import annotations

import pytest
from foreign_clients import MURMUR2S
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.errors import InvalidPartitions
from streamhouse.wire.murmur2 import murmur2, partition_for_key

# org.apache.kafka.common.utils.UtilsTest.testMurmur2
KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "signed"), KAFKA_VECTORS.items())
def test_kafkas_own_vectors(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF
    assert partition_for_key(key, 1000) == (signed & 0x7FFFFFFF) % 1000


@given(st.binary(max_size=200))
def test_two_clients_agree(key: bytes) -> None:
    for theirs in MURMUR2S:
        assert murmur2(memoryview(key)) == theirs(key) & 0xFFFFFFFF


def test_a_topic_needs_a_partition() -> None:
    with pytest.raises(InvalidPartitions):
        partition_for_key(b"key", 0)

"""Decompression bombs meet a process that could not hold what they inflate to."""

from __future__ import annotations

import subprocess
import sys

import pytest
from wire_samples import CODECS

from streamhouse.wire.codecs import Codec

# Addresses, not resident pages, are limited: an allocation that trusts a declared size fails even if never touched.
# The room is a quarter of what the bomb holds, and more than the windows and tables of the codecs take.
CHILD = """
import resource, sys
from streamhouse.core.errors import InflatedTooLarge
from streamhouse.wire.batch import HEADER_BYTES
from streamhouse.wire.codecs import compress, inflate
from streamhouse.wire.records import Record, build_batch, decode_records
from streamhouse.wire.columns import StoredBatches, decode_columns

codec, inflated_mib, room_mib = map(int, sys.argv[1:])
one = build_batch([Record(value=bytes(2**20))], codec=codec)
inflate(codec, one[HEADER_BYTES:])
decode_columns([StoredBatches(partition=0, data=one)])
bomb = build_batch([Record(value=bytes(2**20 * inflated_mib))], codec=codec)

with open("/proc/self/statm") as statm:
    now_bytes = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now_bytes + room_mib * 2**20, resource.RLIM_INFINITY))
for attack in (
    lambda: inflate(codec, bomb[HEADER_BYTES:], max_bytes=2**20),
    lambda: decode_records(bomb, max_inflated_bytes=2**20),
    lambda: decode_columns([StoredBatches(partition=0, data=bomb)], max_inflated_bytes=2**20),
):
    try:
        attack()
    except InflatedTooLarge:
        print("stopped")
"""


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != Codec.NONE])
def test_a_bomb_is_stopped_at_the_cap_within_bounded_memory(codec: Codec) -> None:
    inflated_mib, room_mib = 96, 24
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(int(codec)), str(inflated_mib), str(room_mib)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert child.stdout.split() == ["stopped"] * 3, child.stderr

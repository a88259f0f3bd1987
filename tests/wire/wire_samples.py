"""Records, batches and damage for the tests of wire/, from strategies and from seeds."""

from __future__ import annotations

import importlib
import random
import struct
from types import ModuleType

import pytest
from crc32c import crc32c
from hypothesis import strategies as st

from streamhouse.wire.batch import HEADER_BYTES
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import Header, Record, build_batch

START_MS = 1_700_000_000_000
CODECS = list(Codec)

header_pairs = st.builds(Header, st.text(max_size=12), st.none() | st.binary(max_size=20))
nullable_bytes = st.none() | st.binary(max_size=80)
records = st.builds(
    Record,
    key=nullable_bytes,
    value=nullable_bytes,
    timestamp_ms=st.integers(-1, 2**50) | st.integers(START_MS, START_MS + 1000),
    headers=st.lists(header_pairs, max_size=4).map(tuple),
)
record_lists = st.lists(records, min_size=1, max_size=30)


def sample_records(count: int, seed: int = 0, *, headers: bool = True) -> list[Record]:
    """Every shape of record among them: null and empty keys and values, none and several headers."""
    rng = random.Random(seed)
    return [
        Record(
            key=None if index % 5 == 0 else b"key-%d" % rng.randrange(1000),
            value=None if index % 7 == 0 else rng.randbytes(rng.randrange(60)) + b"text " * rng.randrange(10),
            timestamp_ms=START_MS + rng.randrange(-500, 500),
            offset=index,
            headers=(Header("trace", rng.randbytes(8)), Header("näme", None)) if headers and index % 3 == 0 else (),
        )
        for index in range(count)
    ]


def sample_batch(count: int = 20, seed: int = 0, **fields: object) -> bytes:
    return build_batch(sample_records(count, seed), **fields)  # type: ignore[arg-type]


def with_crc(batch: bytes | bytearray) -> bytes:
    """The same bytes with a right length and CRC: what an attacker sends, who can compute both."""
    sealed = bytearray(batch)
    struct.pack_into(">i", sealed, 8, len(sealed) - 12)
    struct.pack_into(">I", sealed, 17, crc32c(sealed[21:]))
    return bytes(sealed)


def with_body(batch: bytes, body: bytes) -> bytes:
    """The batch's header before another body."""
    return with_crc(batch[:HEADER_BYTES] + body)


def mutated(data: bytes, rng: random.Random, start: int = 0) -> bytes:
    """One to four bytes from ``start`` on changed, inserted or removed, the way fuzzers do."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(start, len(out)) if len(out) > start else start
        match rng.randrange(6):
            case 0 | 1 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 2 if at < len(out):
                out[at] = rng.choice((0x00, 0x01, 0x7F, 0x80, 0xFF))
            case 3:
                out[at:at] = rng.randbytes(rng.randint(1, 3))
            case 4:
                del out[at : at + rng.randint(1, 3)]
            case 5:
                out[at:at] = b"\xff\xff\xff\xff\x0f"
    return bytes(out)


def kernel_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"streamhouse.wire.{name}")
    except ModuleNotFoundError:
        pytest.fail(f"streamhouse.wire.{name} is not built: install a C compiler, then pip install -e . again")

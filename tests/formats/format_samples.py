"""Record batches and damage, made from seeds, for the tests of every format."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from uuid import UUID

from crc32c import crc32c
from hypothesis import strategies as st

from streamhouse.core.ids import TopicId

TOPIC = TopicId(UUID("0fe1d2c3-b4a5-4687-8978-6a5b4c3d2e1f"))
START_MS = 1_700_000_000_000


def make_batch(
    *,
    base_offset: int = 0,
    count: int = 3,
    payload: bytes | None = None,
    leader_epoch: int = -1,
    first_ms: int = START_MS,
    max_ms: int | None = None,
    records: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytes:
    """One v2 batch with a right CRC. The records are opaque here, so their bytes may be anything long enough."""
    body = b"\x0c" * (7 * count) if payload is None else payload
    checked = struct.pack(
        ">hiqqqhii",
        attributes,
        count - 1,
        first_ms,
        first_ms + count if max_ms is None else max_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        count if records is None else records,
    )
    checked += body
    return struct.pack(">qiibI", base_offset, 9 + len(checked), leader_epoch, 2, crc32c(checked)) + checked


def batch_run(
    *, count: int, seed: int, base_offset: int = 0, leader_epoch: int = 0, max_payload: int = 400
) -> list[bytes]:
    """Consecutive batches at real offsets, half noise and half repetition."""
    rng = random.Random(seed)
    batches = []
    for _ in range(count):
        records = rng.randint(1, 9)
        size = rng.randint(7 * records, max_payload)
        payload = (rng.randbytes(size // 2 + 1) + bytes([rng.randrange(256)]) * size)[:size]
        batches.append(
            make_batch(
                base_offset=base_offset,
                count=records,
                payload=payload,
                leader_epoch=leader_epoch,
                first_ms=START_MS + rng.randint(-500, 5000),
            )
        )
        base_offset += records
    return batches


@st.composite
def batches(draw: st.DrawFn, *, base_offset: int = 0, leader_epoch: int = -1) -> bytes:
    count = draw(st.integers(1, 20))
    return make_batch(
        base_offset=base_offset,
        count=count,
        payload=draw(st.binary(min_size=7 * count, max_size=7 * count + 300)),
        leader_epoch=leader_epoch,
        first_ms=draw(st.integers(-1, 2**45)),
        producer_id=draw(st.sampled_from([-1, 7])),
        base_sequence=draw(st.integers(-1, 2**31 - 1)),
    )


def damages(data: bytes, *, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """``count`` damaged copies, none equal to the original: what disks, networks and bugs do to bytes."""
    rng = random.Random(seed)
    made = 0
    while made < count:
        kind, damaged = _damage(data, rng)
        if damaged != data:
            made += 1
            yield kind, damaged


def _damage(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    at = rng.randrange(len(data))
    length = min(len(data) - at, rng.choice((1, 2, 4, 8, 64, 512, len(data))))
    kind = rng.choice(
        ("flip", "flip", "flips", "byte", "truncate", "splice", "swap", "zero", "noise", "insert", "delete")
    )
    damaged = bytearray(data)
    if kind == "flip":
        damaged[at] ^= 1 << rng.randrange(8)
    elif kind == "flips":
        for _ in range(rng.randint(2, 9)):
            damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "byte":
        damaged[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
    elif kind == "truncate":
        del damaged[at:]
    elif kind == "splice":
        source = rng.randrange(len(data))
        damaged[at : at + length] = data[source : source + length]
    elif kind == "swap":
        half = max(1, length // 2)
        damaged[at : at + 2 * half] = data[at + half : at + 2 * half] + data[at : at + half]
    elif kind == "zero":
        damaged[at : at + length] = bytes(length)
    elif kind == "noise":
        damaged[at : at + length] = rng.randbytes(length)
    elif kind == "insert":
        damaged[at:at] = rng.randbytes(length)
    else:
        del damaged[at : at + length]
    return kind, bytes(damaged)

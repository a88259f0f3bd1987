"""Requests of every API and version with random fields, and what may happen to their bytes on the way. Seeded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any
from uuid import UUID

from fuzz_batches import PRODUCE, Batches

from streamhouse.gateway.kafka.wire.headers import request_frame
from streamhouse.gateway.kafka.wire.schema import write_request
from streamhouse.gateway.kafka.wire.table import FieldSpec, message_names, message_spec

KEYS = [int(name.partition(".")[0]) for name in message_names() if name.endswith(".request")]
PRODUCE_SHARE = 0.2
"""The share of Produce among all frames: it has the most code behind it. Half of them are sent undamaged."""

_BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}
_TEXTS = ("", "t", "orders", "g-1", "__consumer_offsets", "a/../b", "ß" * 40, "x" * 300)
_EDGES = (b"\0", b"\1", b"\x7f", b"\x80", b"\xff", b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff")


def random_request(rng: Random, keys: Sequence[int], batches: Batches) -> bytes:
    """A whole frame that any server has to understand."""
    key = PRODUCE if PRODUCE in keys and rng.random() < PRODUCE_SHARE else rng.choice(keys)
    spec = message_spec(f"{key}.request")
    version = rng.choice(spec.versions)
    with_batches = key == PRODUCE and rng.random() < 0.95
    fields = batches.request(version) if with_batches else _fields(spec.fields, version, rng)
    body = write_request(key, version, fields)
    client_id = rng.choice((None, "", "fuzz", "client-" + "x" * 40))
    return request_frame(key, version, rng.getrandbits(31), client_id, body)


def _fields(fields: Sequence[FieldSpec], version: int, rng: Random) -> dict[str, Any]:
    return {field.name: _value(field, version, rng) for field in fields if version in field.versions}


def _value(field: FieldSpec, version: int, rng: Random) -> Any:
    if version in field.nullable and rng.random() < 0.2:
        return None
    if field.is_array:
        return [_item(field, version, rng) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    return _item(field, version, rng)


def _item(field: FieldSpec, version: int, rng: Random) -> Any:
    match field.kind:
        case "struct":
            return _fields(field.fields, version, rng)
        case "str":
            return rng.choice(_TEXTS)
        case "bytes":
            return rng.randbytes(rng.choice((0, 1, 61, 200)))
        case "uuid":
            return UUID(int=rng.choice((0, 1, rng.getrandbits(128))))
        case "bool":
            return rng.random() < 0.5
        case "f64":
            return rng.uniform(-1e9, 1e9)
        case "u16":
            return rng.getrandbits(16)
    low, high = -(2 ** (_BITS[field.kind] - 1)), 2 ** (_BITS[field.kind] - 1) - 1
    return rng.choice((0, 0, 1, 1, -1, 100, low, high)) if low < -128 else rng.choice((0, 1, -1, low, high))


# What happens to it.


def mutated(rng: Random, keys: Sequence[int], batches: Batches) -> bytes:
    frame = random_request(rng, keys, batches)
    if int.from_bytes(frame[4:6], "big") == PRODUCE and rng.random() < 0.5:
        return frame
    return rng.choice(_MUTATIONS)(frame, rng)


def _as_it_is(frame: bytes, rng: Random) -> bytes:
    return frame


def _flip_bits(frame: bytes, rng: Random) -> bytes:
    out = bytearray(frame)
    for _ in range(rng.choice((1, 1, 2, 8))):
        out[rng.randrange(4, len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _write_an_edge(frame: bytes, rng: Random) -> bytes:
    """Where a length may be: the largest, the smallest, one too many."""
    edge = rng.choice(_EDGES)
    at = rng.randrange(4, len(frame))
    return _sized(frame[4:at] + edge + frame[at + len(edge) :])


def _nudge_a_byte(frame: bytes, rng: Random) -> bytes:
    out = bytearray(frame)
    at = rng.randrange(4, len(out))
    out[at] = (out[at] + rng.choice((-1, 1))) % 256
    return bytes(out)


def _cut(frame: bytes, rng: Random) -> bytes:
    return _sized(frame[4 : rng.randrange(4, len(frame))])


def _add(frame: bytes, rng: Random) -> bytes:
    return _sized(frame[4:] + rng.randbytes(rng.choice((1, 4, 100))))


def _remove_or_repeat(frame: bytes, rng: Random) -> bytes:
    start, end = sorted((rng.randrange(4, len(frame)), rng.randrange(4, len(frame))))
    return _sized(frame[4:start] + frame[start:end] * rng.choice((0, 2, 5)) + frame[end:])


def _another_header(frame: bytes, rng: Random) -> bytes:
    key = rng.choice((*KEYS, rng.getrandbits(16))).to_bytes(2, "big")
    return frame[:4] + key + rng.choice((0, 1, 5, 9, 13, 20, 0xFFFF)).to_bytes(2, "big") + frame[8:]


def _noise(frame: bytes, rng: Random) -> bytes:
    return _sized(frame[4:12] + rng.randbytes(rng.choice((0, 3, 50, 1000))))


def _another_size(frame: bytes, rng: Random) -> bytes:
    size = rng.choice((0, 1, 7, 8, len(frame) - 5, len(frame) + 100, 1 << 20, 100 << 20, 0x7FFFFFFF, 0xFFFFFFFF))
    return size.to_bytes(4, "big") + frame[4:]


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


_MUTATIONS: tuple[Callable[[bytes, Random], bytes], ...] = (
    _as_it_is,
    _flip_bits,
    _flip_bits,
    _write_an_edge,
    _write_an_edge,
    _nudge_a_byte,
    _nudge_a_byte,
    _cut,
    _add,
    _remove_or_repeat,
    _another_header,
    _noise,
    _another_size,
)

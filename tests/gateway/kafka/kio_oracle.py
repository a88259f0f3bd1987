"""kio as the oracle: the same message as its dataclass and as plain fields, random, for any schema and version."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from random import Random
from types import NoneType
from typing import Any, get_args, get_origin
from uuid import UUID

from kio.index import load_entity_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.constants import EntityType

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "timedelta_i32": 32}
_TEXTS = ("", "a", "topic-1", "größer", "x" * 200)


@cache
def kio_type(message: str, api_name: str, version: int) -> Any:
    kind = message.partition(".")[2] or "data"
    return load_entity_schema(api_name, version, EntityType[kind])


def kio_bytes(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def random_pair(entity: Any, rng: Random) -> tuple[Any, dict[str, Any]]:
    """An instance of kio's dataclass, and the same as we write it."""
    theirs: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    for field in fields(entity):
        theirs[field.name], ours[field.name] = _random_value(field, rng)
    return entity(**theirs), ours


def _random_value(field: Any, rng: Random) -> tuple[Any, Any]:
    options = get_args(field.type)
    nullable = NoneType in options
    plain = next(part for part in options if part is not NoneType) if nullable else field.type
    is_array = get_origin(plain) is tuple
    is_uuid = field.metadata.get("kafka_type") == "uuid" and not is_array
    if nullable and not is_uuid and rng.random() < 0.3 and not ("tag" in field.metadata and field.default is not None):
        return None, -1 if field.metadata.get("kafka_type") == "datetime_i64" else None
    item = get_args(plain)[0] if is_array else plain
    make: Callable[[], tuple[Any, Any]] = (
        (lambda: random_pair(item, rng))
        if is_dataclass(item)
        else (lambda: _random_scalar(field.metadata["kafka_type"], rng))
    )
    if not is_array:
        return make()
    pairs = [make() for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    return tuple(theirs for theirs, _ in pairs), [ours for _, ours in pairs]


def _random_scalar(kafka_type: str, rng: Random) -> tuple[Any, Any]:
    match kafka_type:
        case "string":
            text = rng.choice(_TEXTS)
            return text, text
        case "bytes" | "records":
            data = rng.randbytes(rng.choice((0, 1, 130, 300)))
            return data, data
        case "bool":
            truth = rng.random() < 0.5
            return truth, truth
        case "uuid":
            number = UUID(int=rng.choice((0, rng.getrandbits(128))))
            return None if number.int == 0 else number, number
        case "error_code":
            code = rng.choice(list(ErrorCode))
            return code, int(code)
        case "float64":
            real = rng.uniform(-1e9, 1e9)
            return real, real
        case "uint16":
            short = rng.getrandbits(16)
            return short, short
        case "timedelta_i64":
            span_ms = rng.randrange(-(10**12), 10**12)
            return timedelta(milliseconds=span_ms), span_ms
        case "datetime_i64":
            wall_ms = rng.randrange(4_000_000_000) * 1000
            return datetime.fromtimestamp(wall_ms / 1000, UTC), wall_ms
    bits = _BITS[kafka_type]
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    number = rng.choice((0, -1, 1, low, high, rng.randrange(low, high)))
    return timedelta(milliseconds=number) if kafka_type == "timedelta_i32" else number, number

"""Write src/streamhouse/gateway/kafka/wire/schemas.json: every Kafka message we speak, from kio's dataclasses.

    python scripts/gen_kafka_schemas.py            write the table
    python scripts/gen_kafka_schemas.py --check    exit 1 if it is out of date

kio has one dataclass per message and version, 604 modules that take more than a second to import; the table has each
message once, its fields with the versions they exist in, and loads in a millisecond. wire/schema.py documents its form.
A field that changes its type between versions becomes two fields of one name with ranges that do not touch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from datetime import timedelta
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from kio.index import load_entity_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

TABLE = Path(__file__).resolve().parents[1] / "src" / "streamhouse" / "gateway" / "kafka" / "wire" / "schemas.json"

# What a broker of Apache Kafka 4.2 is asked by clients and tools: data, groups, topics, transactions, access, quotas.
API_KEYS = (
    *range(4),
    *range(8, 52),
    *(55, 57, 60, 61, 65, 66, 68, 69, 74, 75),
)

# Where kio knows a version that Kafka 4.2's ApiVersions does not offer: unstable there, or from a later release.
KAFKA_4_2_MAX_VERSIONS = {22: 5, 35: 4}

DATA = ("consumer_protocol_subscription", "consumer_protocol_assignment")

KINDS = {
    "bool": "bool",
    "bytes": "bytes",
    "datetime_i64": "i64",
    "error_code": "i16",
    "float64": "f64",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "int8": "i8",
    "records": "bytes",
    "string": "str",
    "timedelta_i32": "i32",
    "timedelta_i64": "i64",
    "uint16": "u16",
    "uuid": "uuid",
}


@dataclass
class MergedField:
    """One field over all the versions seen so far."""

    name: str
    kind: str
    is_array: bool
    tag: int | None
    default: Any
    versions: list[int] = field(default_factory=list)
    nullable: list[int] = field(default_factory=list)
    nested: list[MergedField] = field(default_factory=list)

    def matches(self, other: MergedField) -> bool:
        mine = (self.name, self.kind, self.is_array, self.tag, self.default)
        return mine == (other.name, other.kind, other.is_array, other.tag, other.default)


def merged(entities: Iterable[tuple[int, type]]) -> list[MergedField]:
    """The fields of all versions in one order that every version agrees with."""
    out: list[MergedField] = []
    for version, entity in entities:
        at = 0
        for seen in map(_describe, fields(entity)):
            index = next((index for index, known in enumerate(out) if known.matches(seen)), None)
            if index is None:
                out.insert(at, seen)
                index = at
            elif index < at:
                sys.exit(f"{entity.__module__}: {seen.name} changes its place")
            out[index].versions.append(version)
            if _is_nullable(_field(entity, seen.name)):
                out[index].nullable.append(version)
            at = index + 1
    for known in out:
        if known.kind == "struct":
            pairs = [(version, entity) for version, entity in entities if version in known.versions]
            known.nested = merged([(version, _struct_of(_field(entity, known.name))) for version, entity in pairs])
    return out


def _field(entity: type, name: str) -> Field[Any]:
    return next(found for found in fields(entity) if found.name == name)


def _describe(found: Field[Any]) -> MergedField:
    struct = _struct_of(found)
    is_array = get_origin(_without_none(found.type)) is tuple
    kind = "struct" if struct is not None else KINDS[found.metadata["kafka_type"]]
    tag = found.metadata.get("tag")
    if tag is not None and struct is not None and not is_array and _is_nullable(found):
        sys.exit(f"{found.name}: a tagged struct that may be null has no encoding kio and Kafka agree on")
    return MergedField(found.name, kind, is_array, tag, _default(found))


def _default(found: Field[Any]) -> Any:
    """Return the default as JSON: absent where there is none, or where it is the type's zero; "null" for a null on the
    wire."""
    value, kafka_type = found.default, found.metadata.get("kafka_type")
    if value is MISSING or value == () or (value is None and kafka_type == "uuid"):
        return None
    if value is None:
        return -1 if kafka_type == "datetime_i64" else "null"
    if is_dataclass(value):
        if value != type(value)():
            sys.exit(f"{found.name}: its default is not a struct of defaults")
        return None
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000) or None
    if isinstance(value, bool | int):
        return (value if isinstance(value, bool) else int(value)) or None
    if isinstance(value, str):
        return {"text": value} if value else None
    sys.exit(f"{found.name}: cannot write the default {value!r}")


def _without_none(annotation: Any) -> Any:
    rest = [part for part in get_args(annotation) if part is not NoneType]
    return rest[0] if NoneType in get_args(annotation) else annotation


def _is_nullable(found: Field[Any]) -> bool:
    """Whether the wire can say null; a uuid says zero and a time -1 instead."""
    plain = _without_none(found.type)
    if get_origin(plain) is not tuple and found.metadata.get("kafka_type") in ("uuid", "datetime_i64"):
        return False
    return NoneType in get_args(found.type)


def _struct_of(found: Field[Any]) -> Any:
    plain = _without_none(found.type)
    if get_origin(plain) is tuple:
        plain = get_args(plain)[0]
    return plain if is_dataclass(plain) else None


def _as_json(known: MergedField) -> list[Any]:
    kind = ("[]" if known.is_array else "") + known.kind
    ranges = [_range(known.versions), _range(known.nullable) if known.nullable else None]
    row = [known.name, kind, *ranges, known.tag, known.default, [_as_json(inner) for inner in known.nested]]
    while row[-1] in (None, []):
        row.pop()
    return row


def _range(versions: list[int]) -> list[int]:
    if versions != list(range(versions[0], versions[-1] + 1)):
        sys.exit(f"versions {versions} have a hole")
    return [versions[0], versions[-1]]


def message(name: str, kind: EntityType, max_version: int | None) -> dict[str, Any]:
    versions = [version for version in sorted(schema_name_map[name]) if max_version is None or version <= max_version]
    entities = [(version, load_entity_schema(name, version, kind)) for version in versions]
    flexible = [version for version, entity in entities if entity.__flexible__]
    return {
        "versions": _range(versions),
        "flexible": flexible[0] if flexible else None,
        "fields": [_as_json(known) for known in merged(entities)],
    }


def table() -> str:
    kinds = (EntityType.request, EntityType.response)
    lines = [_line(f"{key}.{kind.name}", api_key_map[key], kind, key) for key in API_KEYS for kind in kinds]
    lines += [_line(name, name, EntityType.data, None) for name in DATA]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _line(title: str, name: str, kind: EntityType, key: int | None) -> str:
    highest = None if key is None else KAFKA_4_2_MAX_VERSIONS.get(key)
    value = {"name": name, **message(name, kind, highest)}
    return f"{json.dumps(title)}:{json.dumps(value, separators=(',', ':'))}"


def main() -> None:
    text = table()
    if "--check" in sys.argv:
        if TABLE.read_text() != text:
            sys.exit(f"{TABLE.name} is out of date: run scripts/gen_kafka_schemas.py")
        return
    TABLE.write_text(text)


if __name__ == "__main__":
    main()

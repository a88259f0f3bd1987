"""Where each document stands. Keys are built and parsed here and nowhere else.

``topic`` is any text without '/' that names the topic: a backend uses the topic's id (R19), an answer to a person its
name.
"""

from __future__ import annotations

import re
from typing import Final

from streamhouse.core.errors import CorruptDocument, InvalidRequest
from streamhouse.core.ids import AppendId
from streamhouse.metadata.documents.fields import INT64_MAX

ROOT: Final = "llog"

_INDEX_KEY = re.compile(rf"{ROOT}/([^/]+)/partitions/(0|[1-9][0-9]{{0,9}})/index/([0-9]{{20}})")
_CONTROL_KEY = re.compile(rf"{ROOT}/([^/]+)/partitions/(0|[1-9][0-9]{{0,9}})/meta/control")


def partition_root(topic: str, partition: int) -> str:
    if not topic or "/" in topic or partition < 0:
        raise InvalidRequest(f"{topic[:260]!r}, partition {partition} cannot stand in a key")
    return f"{ROOT}/{topic}/partitions/{partition}"


def control_key(topic: str, partition: int) -> str:
    return f"{partition_root(topic, partition)}/meta/control"


def cursor_key(topic: str, partition: int) -> str:
    return f"{partition_root(topic, partition)}/meta/compaction-cursor"


def compaction_key(topic: str, partition: int) -> str:
    return f"{partition_root(topic, partition)}/meta/compaction"


def claim_key(topic: str, partition: int) -> str:
    return f"{partition_root(topic, partition)}/meta/compactor-claim"


def index_key(topic: str, partition: int, end_offset: int) -> str:
    if not 0 <= end_offset <= INT64_MAX:
        raise InvalidRequest(f"end offset {end_offset} cannot stand in a key")
    return f"{partition_root(topic, partition)}/index/{end_offset:020d}"


def index_range(topic: str, partition: int) -> tuple[str, str]:
    """The half-open key range of a partition's index, in a store that orders keys by path segment."""
    prefix = f"{partition_root(topic, partition)}/index/"
    return prefix, prefix + "/"


def producer_key(topic: str, partition: int, producer_id: int) -> str:
    if not 0 <= producer_id <= INT64_MAX:
        raise InvalidRequest(f"producer id {producer_id} cannot stand in a key")
    return f"{partition_root(topic, partition)}/producers/{producer_id:020d}"


def append_key(topic: str, partition: int, append_id: AppendId) -> str:
    return f"{partition_root(topic, partition)}/appends/{append_id}"


def routing_key(topic: str, partition: int) -> str:
    """All records with the same routing key are on one shard: those of one partition."""
    partition_root(topic, partition)
    return f"{topic}:{partition}"


def parse_index_key(key: str) -> tuple[str, int, int]:
    """(topic, partition, end offset). A ceiling lookup past the tail finds another kind of key: CorruptDocument."""
    found = _INDEX_KEY.fullmatch(key)
    if found is None or int(found[3]) > INT64_MAX:
        raise CorruptDocument(f"{key[:512]!r} is not the key of an index entry")
    return found[1], int(found[2]), int(found[3])


def parse_control_key(key: str) -> tuple[str, int] | None:
    """(topic, partition), or None for any other key: discovery scans everything under the root."""
    found = _CONTROL_KEY.fullmatch(key)
    return None if found is None else (found[1], int(found[2]))

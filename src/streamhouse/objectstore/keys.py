"""Every object key, built and parsed. No other module may spell one.

    wal-shared/{created_ms:13}-{uuid}.lls1                                              a shared blob
    topics/{topic_id}/{partition:05}/segments/{base:20}-{epoch:10}-{created_ms:13}-{uuid}.strm
    topics/{topic_id}/{partition:05}/compacted/{base:20}-{end:20}-{created_ms:13}-{uuid}.strm
    upload-staging/{created_ms:13}-{uuid}.part                                          an upload not yet published
    store-probe/{created_ms:13}-{uuid}                                                  a start-up check
    cluster-id                                                                          whose object store this is
    metadata-progress/{progress:020}                                                    how new the metadata was

* The UUID makes a key unique; with create-only puts that is what lets a writer know its own object (R11).
* ``created_ms`` is when the writer named the object; vacuum compares it with the horizon (R6). Blobs sort by it.
* The topic's id, not its name: a recreated topic never sees old data (R19). It is written as 32 hexadecimal digits and
  not as Kafka's base64, because two base64 ids may differ in nothing but case, and a file system may not.
* Numbers have fixed width, so that text order is number order, and no folder's name begins a longer name beside it,
  which some S3 servers list in the wrong order.
* Offsets include both ends, as entries do.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Final

from streamhouse.core.errors import InvalidRequest
from streamhouse.core.ids import PartitionKey, TopicId

SHARED_BLOB_PREFIX: Final = "wal-shared/"
TOPICS_PREFIX: Final = "topics/"
STAGING_PREFIX: Final = "upload-staging/"
PROBE_PREFIX: Final = "store-probe/"
CLUSTER_ID_KEY: Final = "cluster-id"
METADATA_PROGRESS_PREFIX: Final = "metadata-progress/"

_MAX_CREATED_MS: Final = 10**13 - 1  # the year 2286
_MAX_PARTITION: Final = 10**5 - 1
_MAX_OFFSET: Final = 2**63 - 1
_MAX_EPOCH: Final = 2**31 - 1

_UUID: Final = r"(?P<object_id>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
_STAMPED: Final = rf"(?P<created_ms>[0-9]{{13}})-{_UUID}"
_LOG: Final = r"topics/(?P<topic_id>[0-9a-f]{32})/(?P<partition>[0-9]{5})"
_BLOB: Final = re.compile(rf"wal-shared/{_STAMPED}\.lls1")
_SEGMENT: Final = re.compile(rf"{_LOG}/segments/(?P<base_offset>[0-9]{{20}})-(?P<epoch>[0-9]{{10}})-{_STAMPED}\.strm")
_COMPACTED: Final = re.compile(
    rf"{_LOG}/compacted/(?P<base_offset>[0-9]{{20}})-(?P<end_offset>[0-9]{{20}})-{_STAMPED}\.strm"
)
_STAGING: Final = re.compile(rf"upload-staging/{_STAMPED}\.part")
_TOPIC: Final = re.compile(r"topics/([0-9a-f]{32})/")
_METADATA_PROGRESS: Final = re.compile(r"metadata-progress/(?P<progress>[0-9]{20})")
_PROBE: Final = re.compile(rf"store-probe/{_STAMPED}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBlobKey:
    """One flush of many partitions."""

    created_ms: int
    object_id: uuid.UUID

    def __post_init__(self) -> None:
        _check("created_ms", self.created_ms, _MAX_CREATED_MS)

    def __str__(self) -> str:
        return f"{SHARED_BLOB_PREFIX}{self.created_ms:013d}-{self.object_id}.lls1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentKey:
    """One partition's records from ``base_offset`` on, written under ``epoch``."""

    log: PartitionKey
    base_offset: int
    epoch: int
    created_ms: int
    object_id: uuid.UUID

    def __post_init__(self) -> None:
        _check("partition", self.log.partition, _MAX_PARTITION)
        _check("base_offset", self.base_offset, _MAX_OFFSET)
        _check("epoch", self.epoch, _MAX_EPOCH)
        _check("created_ms", self.created_ms, _MAX_CREATED_MS)

    def __str__(self) -> str:
        name = f"{self.base_offset:020d}-{self.epoch:010d}-{self.created_ms:013d}-{self.object_id}.strm"
        return f"{partition_prefix(self.log)}segments/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedKey:
    """One partition's records from ``base_offset`` to ``end_offset``, rewritten by compaction."""

    log: PartitionKey
    base_offset: int
    end_offset: int
    created_ms: int
    object_id: uuid.UUID

    def __post_init__(self) -> None:
        _check("partition", self.log.partition, _MAX_PARTITION)
        _check("end_offset", self.end_offset, _MAX_OFFSET)
        _check("base_offset", self.base_offset, self.end_offset)
        _check("created_ms", self.created_ms, _MAX_CREATED_MS)

    def __str__(self) -> str:
        name = f"{self.base_offset:020d}-{self.end_offset:020d}-{self.created_ms:013d}-{self.object_id}.strm"
        return f"{partition_prefix(self.log)}compacted/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingKey:
    """Where a multipart upload gathers before it is published. Garbage once its writer is gone."""

    created_ms: int
    object_id: uuid.UUID

    def __post_init__(self) -> None:
        _check("created_ms", self.created_ms, _MAX_CREATED_MS)

    def __str__(self) -> str:
        return f"{STAGING_PREFIX}{self.created_ms:013d}-{self.object_id}.part"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeKey:
    """What a start-up check writes and deletes. Garbage once its writer is gone."""

    created_ms: int
    object_id: uuid.UUID

    def __post_init__(self) -> None:
        _check("created_ms", self.created_ms, _MAX_CREATED_MS)

    def __str__(self) -> str:
        return f"{PROBE_PREFIX}{self.created_ms:013d}-{self.object_id}"


ObjectKey = SharedBlobKey | SegmentKey | CompactedKey | StagingKey | ProbeKey


def parse(key: str) -> ObjectKey | None:
    """Parse a key. Returns None for one that no builder here makes: a foreign object, which must not be touched."""
    try:
        return _parse(key)
    except InvalidRequest:
        return None


def metadata_progress_key(progress: int) -> str:
    """The key of the mark that stores this progress of the metadata."""
    _check("progress", progress, _MAX_OFFSET)
    return f"{METADATA_PROGRESS_PREFIX}{progress:020d}"


def metadata_progress_of(key: str) -> int | None:
    """The progress that a mark's key names. None for the key of any other object."""
    match = _METADATA_PROGRESS.fullmatch(key)
    return None if match is None else int(match["progress"])


def topic_of(key: str) -> TopicId | None:
    """The topic in whose folder a key lies. None for every other key. Faster than ``parse``, which checks all of it."""
    match = _TOPIC.match(key)
    return None if match is None else TopicId(uuid.UUID(hex=match[1]))


def topic_prefix(topic_id: TopicId) -> str:
    return f"{TOPICS_PREFIX}{topic_id.hex}/"


def partition_prefix(log: PartitionKey) -> str:
    _check("partition", log.partition, _MAX_PARTITION)
    return f"{topic_prefix(log.topic_id)}{log.partition:05d}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """Arguments of ``ObjectStore.list``."""

    prefix: str
    start_after: str | None = None
    stop_before: str | None = None


def created_between(prefix: str, *, from_ms: int | None = None, before_ms: int | None = None) -> KeyRange:
    """The keys under a prefix that sorts by creation (blobs, staging, probes) made in ``[from_ms, before_ms)``."""
    if prefix not in (SHARED_BLOB_PREFIX, STAGING_PREFIX, PROBE_PREFIX):
        raise InvalidRequest(f"keys under {prefix} do not sort by creation")
    # A bare stamp sorts before every key that begins with it and after every key of an earlier stamp.
    return KeyRange(
        prefix=prefix,
        start_after=None if from_ms is None else f"{prefix}{_stamp(from_ms)}",
        stop_before=None if before_ms is None else f"{prefix}{_stamp(before_ms)}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectUri:
    """An object's full address: the store's URL, and the key in it."""

    store_url: str
    key: ObjectKey

    def __str__(self) -> str:
        return f"{self.store_url}/{self.key}"


def parse_uri(uri: str) -> ObjectUri:
    """``s3://bucket/prefix/wal-shared/…`` or ``file:///directory/topics/…``; the key is found from the end."""
    for slashes in (2, 5):
        parts = uri.rsplit("/", slashes)
        key = parse("/".join(parts[1:]))
        if key is not None and "://" in parts[0]:
            return ObjectUri(store_url=parts[0], key=key)
    raise InvalidRequest(f"{uri[:300]!r} is not the address of an object of ours")


def _parse(key: str) -> ObjectKey | None:
    if match := _BLOB.fullmatch(key):
        return SharedBlobKey(created_ms=int(match["created_ms"]), object_id=uuid.UUID(match["object_id"]))
    if match := _SEGMENT.fullmatch(key):
        return SegmentKey(
            log=_log(match),
            base_offset=int(match["base_offset"]),
            epoch=int(match["epoch"]),
            created_ms=int(match["created_ms"]),
            object_id=uuid.UUID(match["object_id"]),
        )
    if match := _COMPACTED.fullmatch(key):
        return CompactedKey(
            log=_log(match),
            base_offset=int(match["base_offset"]),
            end_offset=int(match["end_offset"]),
            created_ms=int(match["created_ms"]),
            object_id=uuid.UUID(match["object_id"]),
        )
    if match := _STAGING.fullmatch(key):
        return StagingKey(created_ms=int(match["created_ms"]), object_id=uuid.UUID(match["object_id"]))
    if match := _PROBE.fullmatch(key):
        return ProbeKey(created_ms=int(match["created_ms"]), object_id=uuid.UUID(match["object_id"]))
    return None


def _log(match: re.Match[str]) -> PartitionKey:
    return PartitionKey(TopicId(uuid.UUID(hex=match["topic_id"])), int(match["partition"]))


def _stamp(ms: int) -> str:
    _check("creation time", ms, _MAX_CREATED_MS)
    return f"{ms:013d}"


def _check(what: str, value: int, largest: int) -> None:
    if not 0 <= value <= largest:
        raise InvalidRequest(f"an object key cannot hold {what} {value}: it must be between 0 and {largest}")

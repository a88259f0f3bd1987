"""The one error tree. Every failure that crosses a module's border is one of these.

    StreamHouseError
    ├── ConfigError                     a setting, flag or topic config is wrong
    │   ├── UnknownSetting              … is not known (carries a suggestion)
    │   ├── InvalidSetting              … has a value that does not fit
    │   └── InvalidTopicConfig          … is a topic config that does not fit
    ├── InvalidRequest                  the caller asked for something that makes no sense
    │   ├── InvalidTopicName
    │   ├── InvalidPartitions
    │   ├── OffsetOutOfRange            below the log's start or above its end, by a fresh look (R16)
    │   └── LimitExceeded               over a limit of core/limits.py
    ├── CorruptData                     bytes that fail a check
    │   ├── CorruptBatch                a record batch (CRC, length, count)
    │   ├── CorruptFrame                a WAL frame
    │   ├── CorruptBlob                 an LLS1 shared blob
    │   ├── CorruptSegment              a STRM segment
    │   ├── CorruptDocument             a JSON document of a key-value metadata store
    │   └── InflatedTooLarge            a compressed body over the cap
    ├── UnsupportedVersion              a format, schema or codec newer than this build
    ├── StoreError                      the object store
    │   ├── ObjectNotFound
    │   ├── ObjectExists                create-only put on a taken key
    │   ├── ReadPastEnd                 a range reaches past the object's end
    │   ├── StoreUnavailable            retries ran out, or time-out
    │   ├── StoreDenied                 credentials or permissions
    │   └── StoreMisconfigured          no such bucket, wrong region or endpoint, a file system without hard links
    ├── MetadataError                   the metadata store
    │   ├── MetadataUnavailable         unreachable, or retries ran out
    │   ├── SchemaTooNew                written by a newer StreamHouse
    │   └── DurabilityMismatch          wal_id or durability mode differs from the stored one (R2)
    ├── WalError                        the write-ahead log
    │   └── WalFailed                   a write or sync failed: this process acknowledges nothing any more
    │       └── WalOutcomeUnknown       … while this frame was on its way: it may be on the disk, or not
    ├── BackPressureRejected            memory or disk is full of what is not committed yet; nothing was taken
    ├── NotFound
    │   ├── TopicNotFound
    │   ├── PartitionNotFound
    │   ├── AgentNotFound
    │   ├── GroupNotFound
    │   └── TransferNotFound
    ├── AlreadyExists
    │   └── TopicExists
    ├── ServiceError                    a private PostgreSQL, S3 or Oxia server for tests and development
    │   ├── ServiceMissing              its program is nowhere to be found
    │   └── ServiceFailed               it did not start, or does not keep a promise we need
    └── Conflict                        lost a race, or fenced off
        ├── WalInUse                    another process holds the WAL's directory
        ├── LeaseHeldByOther
        ├── NotLeader
        ├── StaleEpoch
        ├── AgentSuperseded             a newer incarnation of this agent id registered
        ├── TransferConflict            a transfer is not in the state this step needs
        ├── CompactionConflict
        ├── OutOfOrderSequence          an idempotent producer left a gap
        ├── DuplicateSequence           … repeated a batch older than its last five
        ├── StaleProducer               … has an older epoch than one that has written
        ├── GroupNotEmpty               a simple commit on a group with members
        └── BatchRegressed              a sink batch older than the last one (R8)

Each class names its Kafka error code, its HTTP status, whether the same call may succeed later, and what a person can
do next. Front doors translate from these attributes; they never invent codes of their own.
"""

from __future__ import annotations

from typing import ClassVar


class StreamHouseError(Exception):
    """Root of the tree. ``message`` says what and where; ``hint`` says what to do next."""

    kafka_code: ClassVar[int] = -1  # UNKNOWN_SERVER_ERROR
    http_status: ClassVar[int] = 500
    retriable: ClassVar[bool] = False
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = self.default_hint if hint is None else hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


# Configuration.


class ConfigError(StreamHouseError):
    kafka_code = 40  # INVALID_CONFIG
    http_status = 400


class UnknownSetting(ConfigError):
    pass


class InvalidSetting(ConfigError):
    pass


class InvalidTopicConfig(ConfigError):
    pass


# Requests.


class InvalidRequest(StreamHouseError):
    kafka_code = 42  # INVALID_REQUEST
    http_status = 400


class InvalidTopicName(InvalidRequest):
    kafka_code = 17  # INVALID_TOPIC_EXCEPTION
    default_hint = "use 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-', other than '.' and '..'"


class InvalidPartitions(InvalidRequest):
    kafka_code = 37  # INVALID_PARTITIONS


class OffsetOutOfRange(InvalidRequest):
    kafka_code = 1  # OFFSET_OUT_OF_RANGE
    http_status = 416

    def __init__(
        self, what: str, *, offset: int, log_start_offset: int, end_offset: int, hint: str | None = None
    ) -> None:
        super().__init__(
            f"offset {offset} is outside of {what}, which starts at {log_start_offset} and ends before {end_offset}",
            hint=hint,
        )
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.end_offset = end_offset


class LimitExceeded(InvalidRequest):
    kafka_code = 10  # MESSAGE_TOO_LARGE
    http_status = 413


# Bytes.


class CorruptData(StreamHouseError):
    kafka_code = 2  # CORRUPT_MESSAGE
    http_status = 422


class CorruptBatch(CorruptData):
    pass


class CorruptFrame(CorruptData):
    pass


class CorruptBlob(CorruptData):
    pass


class CorruptSegment(CorruptData):
    pass


class CorruptDocument(CorruptData):
    pass


class InflatedTooLarge(CorruptData):
    kafka_code = 10  # MESSAGE_TOO_LARGE
    http_status = 413
    default_hint = "send smaller batches"


class UnsupportedVersion(StreamHouseError):
    kafka_code = 76  # UNSUPPORTED_COMPRESSION_TYPE is the only place a client can meet this
    http_status = 422
    default_hint = "upgrade StreamHouse"


# Object store.


class StoreError(StreamHouseError):
    kafka_code = 56  # KAFKA_STORAGE_ERROR
    http_status = 503


class ObjectNotFound(StoreError):
    http_status = 404


class ObjectExists(StoreError):
    http_status = 409


class ReadPastEnd(StoreError):
    http_status = 416


class StoreUnavailable(StoreError):
    retriable = True
    default_hint = "check that the object store is up and reachable; the call may be repeated"


class StoreDenied(StoreError):
    http_status = 403
    default_hint = "check the credentials and the bucket's policy"


class StoreMisconfigured(StoreError):
    http_status = 500
    default_hint = "check the store's URL, endpoint and region"


# Metadata store.


class MetadataError(StreamHouseError):
    kafka_code = 56  # KAFKA_STORAGE_ERROR
    http_status = 503


class MetadataUnavailable(MetadataError):
    retriable = True
    default_hint = "check that the metadata store is up and reachable; the call may be repeated"


class SchemaTooNew(MetadataError):
    http_status = 500
    default_hint = "start the StreamHouse version that wrote it, or a newer one"


class DurabilityMismatch(MetadataError):
    http_status = 409
    default_hint = "start with the data directory that belongs to this metadata store, or drain it first"


# Write-ahead log.


class WalError(StreamHouseError):
    kafka_code = 56  # KAFKA_STORAGE_ERROR
    http_status = 503


class WalFailed(WalError):
    retriable = True  # elsewhere, or once this process has been started anew
    default_hint = "see to the disk, then restart this process; nothing it acknowledged is lost"


class WalOutcomeUnknown(WalFailed):
    kafka_code = 20  # NOT_ENOUGH_REPLICAS_AFTER_APPEND


class BackPressureRejected(StreamHouseError):
    kafka_code = 19  # NOT_ENOUGH_REPLICAS
    http_status = 503
    retriable = True
    default_hint = "send again a little later"


# Things that are not there, or already are.


class NotFound(StreamHouseError):
    http_status = 404


class TopicNotFound(NotFound):
    kafka_code = 3  # UNKNOWN_TOPIC_OR_PARTITION


class PartitionNotFound(NotFound):
    kafka_code = 3  # UNKNOWN_TOPIC_OR_PARTITION


class AgentNotFound(NotFound):
    kafka_code = 8  # BROKER_NOT_AVAILABLE


class GroupNotFound(NotFound):
    kafka_code = 69  # GROUP_ID_NOT_FOUND


class TransferNotFound(NotFound):
    pass


class AlreadyExists(StreamHouseError):
    http_status = 409


class TopicExists(AlreadyExists):
    kafka_code = 36  # TOPIC_ALREADY_EXISTS


# Private servers for tests and development.


class ServiceError(StreamHouseError):
    http_status = 503


class ServiceMissing(ServiceError):
    pass


class ServiceFailed(ServiceError):
    pass


# Races and fences.


class Conflict(StreamHouseError):
    http_status = 409


class WalInUse(Conflict):
    default_hint = "stop the other process, or choose another --data-dir"


class LeaseHeldByOther(Conflict):
    kafka_code = 6  # NOT_LEADER_OR_FOLLOWER
    retriable = True

    def __init__(self, what: str, *, agent_id: str, hint: str | None = None) -> None:
        super().__init__(f"the lease on {what} is held by {agent_id}", hint=hint)
        self.agent_id = agent_id


class NotLeader(Conflict):
    kafka_code = 6  # NOT_LEADER_OR_FOLLOWER
    retriable = True

    def __init__(self, what: str, *, current_leader: str | None, hint: str | None = None) -> None:
        leader = f"{current_leader} leads it" if current_leader else "it has no leader now"
        super().__init__(f"this agent does not lead {what}; {leader}", hint=hint)
        self.current_leader = current_leader


class StaleEpoch(Conflict):
    kafka_code = 74  # FENCED_LEADER_EPOCH

    def __init__(self, what: str, *, expected: int, actual: int, hint: str | None = None) -> None:
        super().__init__(f"epoch {expected} of {what} is stale; it is at epoch {actual}", hint=hint)
        self.expected = expected
        self.actual = actual


class AgentSuperseded(Conflict):
    default_hint = "two processes run under one agent id; give each its own"


class TransferConflict(Conflict):
    pass


class CompactionConflict(Conflict):
    pass


class OutOfOrderSequence(Conflict):
    kafka_code = 45  # OUT_OF_ORDER_SEQUENCE_NUMBER


class DuplicateSequence(Conflict):
    kafka_code = 46  # DUPLICATE_SEQUENCE_NUMBER


class StaleProducer(Conflict):
    kafka_code = 47  # INVALID_PRODUCER_EPOCH


class GroupNotEmpty(Conflict):
    kafka_code = 68  # NON_EMPTY_GROUP


class BatchRegressed(Conflict):
    default_hint = "the checkpoint is older than the sink; restore the newest checkpoint or start a new query"

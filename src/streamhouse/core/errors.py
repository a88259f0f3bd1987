"""The one error tree. Every failure that crosses a module's border is one of these.

    StreamHouseError
    ├── ConfigError                     a setting, flag or topic config is wrong
    │   ├── UnknownSetting              … is not known (carries a suggestion)
    │   ├── InvalidSetting              … has a value that does not fit
    │   └── InvalidTopicConfig          … is a topic config that does not fit
    ├── InvalidRequest                  the caller asked for something that makes no sense
    │   ├── InvalidTopicName
    │   ├── InvalidPartitions
    │   ├── InvalidReplicationFactor
    │   ├── InvalidReplicaAssignment    partitions placed by hand; the ring places them
    │   ├── InvalidRecord               a batch that is whole but not what a client may write
    │   ├── InvalidAcks                 acks is -1 (all), 1 or 0
    │   ├── InvalidTimestamp            a record's time lies further off than its topic allows
    │   ├── PolicyViolation             what the topic's configs forbid
    │   ├── TransactionsUnsupported     asked for a transaction
    │   ├── MalformedRequest            bytes that are no request of the protocol they came by
    │   ├── OffsetOutOfRange            below the log's start or above its end, by a fresh look (R16)
    │   └── LimitExceeded               over a limit of core/limits.py
    ├── CorruptData                     bytes that fail a check
    │   ├── CorruptBatch                a record batch (CRC, length, count)
    │   ├── CorruptFrame                a WAL frame
    │   ├── CorruptBlob                 an LLS1 shared blob
    │   ├── CorruptSegment              a STRM segment
    │   ├── CorruptDocument             a JSON document of a key-value metadata store
    │   ├── DamagedObject               an object of the log is missing, or its bytes fail their checks
    │   └── InflatedTooLarge            a compressed body over the cap
    ├── DataLost                        records that a Spark query was to read are gone (failOnDataLoss)
    ├── UnsupportedVersion              a format, schema or codec newer than this build
    ├── StoreError                      the object store
    │   ├── ObjectNotFound
    │   ├── ObjectExists                create-only put on a taken key
    │   ├── ReadPastEnd                 a range reaches past the object's end
    │   ├── StoreUnavailable            retries ran out, or time-out
    │   │   └── StoreCredentialsMissing  no credentials were found anywhere
    │   ├── StoreDenied                 credentials or permissions
    │   └── StoreMisconfigured          no such bucket, wrong region or endpoint, a file system without hard links
    ├── MetadataError                   the metadata store
    │   ├── MetadataUnavailable         unreachable, or retries ran out
    │   ├── SchemaTooNew                written by a newer StreamHouse
    │   ├── MetadataTooOld              an older copy, beside a newer WAL or newer objects
    │   └── DurabilityMismatch          wal_id or durability mode differs from the stored one (R2)
    ├── WalError                        the write-ahead log
    │   └── WalFailed                   a write or sync failed: this process acknowledges nothing any more
    │       └── WalOutcomeUnknown       … while this frame was on its way: it may be on the disk, or not
    ├── BackPressureRejected            memory or disk is full of what is not committed yet; nothing was taken
    ├── NotAcknowledged                 a write was not acknowledged in time; it may be written later, or never
    ├── NotAdopted                      a sink's batch is safe, but no leader has put it into the log in time
    ├── TargetError                     a database or table that a pipeline writes to
    │   └── TargetUnavailable           it does not answer
    ├── NotFound
    │   ├── TopicNotFound
    │   │   └── UnknownTopicId          … by its id, which a recreated topic does not keep
    │   ├── PartitionNotFound
    │   ├── AgentNotFound
    │   ├── GroupNotFound
    │   ├── TransferNotFound
    │   └── DefinitionNotFound          a table or pipeline that nobody has defined
    ├── AlreadyExists
    │   ├── TopicExists
    │   └── DefinitionExists
    ├── GroupError                      a consumer group's rules
    │   ├── CoordinatorLoading          its coordinator reads it from the store right now
    │   ├── CoordinatorNotAvailable     nobody coordinates it now, or the store did not answer
    │   ├── NotCoordinator              another agent coordinates it
    │   ├── IllegalGeneration           a member speaks of another generation than the group's
    │   ├── InconsistentProtocol        nothing in common with the members there are
    │   ├── InvalidGroupId
    │   ├── UnknownMember               not a member, or not any more
    │   ├── InvalidSessionTimeout
    │   ├── RebalanceInProgress         join again
    │   ├── OffsetMetadataTooLarge
    │   ├── MemberIdRequired            join again with the id that comes with it
    │   ├── GroupFull
    │   ├── FencedInstance              another process has this static member's place
    │   ├── GroupSubscribed             the group still reads the topic whose offsets shall go
    │   ├── FencedMemberEpoch           abandon all partitions and join again
    │   ├── UnreleasedInstance          the static member of that id has not left
    │   ├── UnsupportedAssignor
    │   ├── StaleMemberEpoch            the member has been given a newer epoch
    │   └── InvalidPattern              not a regular expression of RE2
    ├── ServiceError                    a private PostgreSQL, S3 or Oxia server for tests and development
    │   ├── ServiceMissing              its program is nowhere to be found
    │   └── ServiceFailed               it did not start, or does not keep a promise we need
    └── Conflict                        lost a race, or fenced off
        ├── WalInUse                    another process holds the WAL's directory
        ├── LeaseHeldByOther
        ├── NotLeader
        ├── StaleEpoch
        ├── UnknownEpoch                the caller knows of a later epoch than this agent does
        ├── AgentSuperseded             a newer incarnation of this agent id registered
        ├── TransferConflict            a transfer is not in the state this step needs
        ├── CompactionConflict
        ├── OutOfOrderSequence          an idempotent producer left a gap
        ├── DuplicateSequence           … repeated a batch that was written before its last five
        ├── StaleProducer               … has an older epoch than one that has written
        ├── GroupNotEmpty               a simple commit on a group with members
        ├── BatchRegressed              a sink batch older than the last one (R8)
        ├── CheckpointLost              a pipeline's state is gone, while its target has rows
        ├── TableBusy                   others change a table all the time
        └── DefinitionChanged           somebody else has changed the table's or pipeline's definition

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


class InvalidReplicationFactor(InvalidRequest):
    kafka_code = 38  # INVALID_REPLICATION_FACTOR
    default_hint = "give -1 or any number from 1 on: the object store keeps the copies"


class InvalidReplicaAssignment(InvalidRequest):
    kafka_code = 39  # INVALID_REPLICA_ASSIGNMENT
    default_hint = "leave the placement out: agents share the partitions by themselves"


class MalformedRequest(InvalidRequest):
    pass


class InvalidRecord(InvalidRequest):
    kafka_code = 87  # INVALID_RECORD


class InvalidAcks(InvalidRequest):
    kafka_code = 21  # INVALID_REQUIRED_ACKS


class InvalidTimestamp(InvalidRequest):
    kafka_code = 32  # INVALID_TIMESTAMP


class PolicyViolation(InvalidRequest):
    kafka_code = 44  # POLICY_VIOLATION


class TransactionsUnsupported(InvalidRequest):
    kafka_code = 53  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which every client gives up on at once
    http_status = 501
    default_hint = "use an idempotent producer without a transactional id"


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


class DamagedObject(CorruptData):
    """Records that cannot be read, because their object is missing or its bytes fail their checks.

    ``where`` is the partition. The offsets are those that cannot be read, the bytes those that were to hold them.
    """

    def __init__(
        self,
        *,
        where: str,
        base_offset: int,
        end_offset: int,
        object_key: str,
        byte_offset: int,
        byte_length: int,
        problem: str,
        missing: bool = False,
    ) -> None:
        super().__init__(
            f"{where}, offsets {base_offset} to {end_offset}: bytes {byte_offset} to {byte_offset + byte_length - 1} of"
            f" {object_key}: {problem}",
            hint="restore the object from a copy or an older version of it; to go on without these records, set"
            f" consumers to offset {end_offset + 1}, or delete the records before it",
        )
        self.where = where
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.object_key = object_key
        self.byte_offset = byte_offset
        self.byte_length = byte_length
        self.problem = problem
        self.missing = missing

    def named(self, where: str) -> DamagedObject:
        """The same error with another name for the partition: low layers know only the topic's id."""
        return DamagedObject(
            where=where,
            base_offset=self.base_offset,
            end_offset=self.end_offset,
            object_key=self.object_key,
            byte_offset=self.byte_offset,
            byte_length=self.byte_length,
            problem=self.problem,
            missing=self.missing,
        )


class InflatedTooLarge(CorruptData):
    kafka_code = 10  # MESSAGE_TOO_LARGE
    http_status = 413
    default_hint = "send smaller batches"


class DataLost(StreamHouseError):
    kafka_code = 1  # OFFSET_OUT_OF_RANGE
    http_status = 410
    default_hint = "set failOnDataLoss to false to read on without it"


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


class StoreCredentialsMissing(StoreUnavailable):
    """No credentials in the settings or the environment, and none from the cloud's metadata service.

    Retriable, because that service may answer later. A start does not wait for it.
    """

    default_hint = "set store.access_key_id and store.secret_access_key, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


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


class MetadataTooOld(MetadataError):
    http_status = 500
    default_hint = "bring the newer metadata back"


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


class NotAcknowledged(StreamHouseError):
    kafka_code = 7  # REQUEST_TIMED_OUT
    http_status = 503
    retriable = True
    default_hint = "send again; an idempotent producer's batch is written once"


class NotAdopted(StreamHouseError):
    kafka_code = 7  # REQUEST_TIMED_OUT
    http_status = 503
    retriable = True
    default_hint = "see that agents run and are healthy, then run the query again: it goes on where it stands"


# What a pipeline writes to.


class TargetError(StreamHouseError):
    pass


class TargetUnavailable(TargetError):
    http_status = 503
    retriable = True
    default_hint = "check that it is up and reachable; the pipeline goes on by itself"


# Things that are not there, or already are.


class NotFound(StreamHouseError):
    http_status = 404


class TopicNotFound(NotFound):
    kafka_code = 3  # UNKNOWN_TOPIC_OR_PARTITION


class UnknownTopicId(TopicNotFound):
    kafka_code = 100  # UNKNOWN_TOPIC_ID


class PartitionNotFound(NotFound):
    kafka_code = 3  # UNKNOWN_TOPIC_OR_PARTITION


class AgentNotFound(NotFound):
    kafka_code = 8  # BROKER_NOT_AVAILABLE


class GroupNotFound(NotFound):
    kafka_code = 69  # GROUP_ID_NOT_FOUND


class TransferNotFound(NotFound):
    pass


class DefinitionNotFound(NotFound):
    pass


class AlreadyExists(StreamHouseError):
    http_status = 409


class TopicExists(AlreadyExists):
    kafka_code = 36  # TOPIC_ALREADY_EXISTS


class DefinitionExists(AlreadyExists):
    default_hint = "choose another name, or delete it first"


# Consumer groups.


class GroupError(StreamHouseError):
    http_status = 409


class CoordinatorLoading(GroupError):
    kafka_code = 14  # COORDINATOR_LOAD_IN_PROGRESS
    http_status = 503
    retriable = True


class CoordinatorNotAvailable(GroupError):
    kafka_code = 15  # COORDINATOR_NOT_AVAILABLE
    http_status = 503
    retriable = True


class NotCoordinator(GroupError):
    kafka_code = 16  # NOT_COORDINATOR
    http_status = 503
    retriable = True
    default_hint = "ask any agent which one coordinates the group"


class IllegalGeneration(GroupError):
    kafka_code = 22  # ILLEGAL_GENERATION


class InconsistentProtocol(GroupError):
    kafka_code = 23  # INCONSISTENT_GROUP_PROTOCOL


class InvalidGroupId(GroupError):
    kafka_code = 24  # INVALID_GROUP_ID
    http_status = 400


class UnknownMember(GroupError):
    kafka_code = 25  # UNKNOWN_MEMBER_ID


class InvalidSessionTimeout(GroupError):
    kafka_code = 26  # INVALID_SESSION_TIMEOUT
    http_status = 400


class RebalanceInProgress(GroupError):
    kafka_code = 27  # REBALANCE_IN_PROGRESS


class OffsetMetadataTooLarge(GroupError):
    kafka_code = 12  # OFFSET_METADATA_TOO_LARGE
    http_status = 413


class MemberIdRequired(GroupError):
    kafka_code = 79  # MEMBER_ID_REQUIRED

    def __init__(self, *, member_id: str) -> None:
        super().__init__(f"join again as {member_id}")
        self.member_id = member_id


class GroupFull(GroupError):
    kafka_code = 81  # GROUP_MAX_SIZE_REACHED


class FencedInstance(GroupError):
    kafka_code = 82  # FENCED_INSTANCE_ID


class GroupSubscribed(GroupError):
    kafka_code = 86  # GROUP_SUBSCRIBED_TO_TOPIC


class FencedMemberEpoch(GroupError):
    kafka_code = 110  # FENCED_MEMBER_EPOCH


class UnreleasedInstance(GroupError):
    kafka_code = 111  # UNRELEASED_INSTANCE_ID


class UnsupportedAssignor(GroupError):
    kafka_code = 112  # UNSUPPORTED_ASSIGNOR
    http_status = 400


class StaleMemberEpoch(GroupError):
    kafka_code = 113  # STALE_MEMBER_EPOCH


class InvalidPattern(GroupError):
    kafka_code = 128  # INVALID_REGULAR_EXPRESSION
    http_status = 400


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


class UnknownEpoch(Conflict):
    kafka_code = 75  # UNKNOWN_LEADER_EPOCH
    retriable = True

    def __init__(self, what: str, *, asked: int, known: int, hint: str | None = None) -> None:
        super().__init__(f"epoch {asked} of {what} is not known here; the latest known is {known}", hint=hint)
        self.asked = asked
        self.known = known


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


class CheckpointLost(Conflict):
    default_hint = "restore the checkpoint; or empty the target and begin anew: `streamhouse pipeline start --reset`"


class TableBusy(Conflict):
    retriable = True
    default_hint = "see who else writes to this table"


class DefinitionChanged(Conflict):
    retriable = True
    default_hint = "look at it again, then repeat the change"

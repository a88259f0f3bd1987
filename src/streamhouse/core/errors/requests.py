"""The errors of a request that is wrong: it is invalid, or what it names does not exist, or exists already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from streamhouse.core.errors.base import StreamHouseError


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


class NoReassignment(InvalidRequest):
    kafka_code = 85  # NO_REASSIGNMENT_IN_PROGRESS
    default_hint = "agents share the partitions by themselves, and move them when an agent comes or goes"


class MalformedRequest(InvalidRequest):
    pass


class RecordError(NamedTuple):
    """What is wrong with one record of a batch."""

    position: int
    """The position in the batch, from 0."""
    message: str


class InvalidRecord(InvalidRequest):
    """``record_errors``: the records that are wrong, if the others of their batch are right."""

    kafka_code = 87  # INVALID_RECORD

    def __init__(self, message: str, *, hint: str | None = None, record_errors: Sequence[RecordError] = ()) -> None:
        super().__init__(message, hint=hint)
        self.record_errors = tuple(record_errors)


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

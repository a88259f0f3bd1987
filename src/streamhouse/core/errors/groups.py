"""The errors of consumer groups, as Kafka's protocol names them."""

from __future__ import annotations

from streamhouse.core.errors.base import StreamHouseError


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

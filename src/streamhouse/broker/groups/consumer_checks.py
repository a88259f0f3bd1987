"""What a KIP-848 heartbeat must look like, by itself and beside what the coordinator knows of its member. Pure."""

from __future__ import annotations

from streamhouse.broker.groups.assignors import ASSIGNORS
from streamhouse.broker.groups.consumer_members import ConsumerMember
from streamhouse.broker.groups.contract import ConsumerHeartbeat
from streamhouse.broker.groups.options import MAX_SUBSCRIBED_TOPICS
from streamhouse.broker.groups.patterns import check_pattern
from streamhouse.core.errors import FencedMemberEpoch, InvalidRequest, UnsupportedAssignor


def check_heartbeat(request: ConsumerHeartbeat) -> None:
    if not request.group_id:
        raise InvalidRequest("a heartbeat without a group id")
    if not request.member_id:
        raise InvalidRequest("a heartbeat without a member id")
    if request.instance_id == "" or request.rack_id == "":
        raise InvalidRequest("an instance id or rack id, where given, is not empty")
    if request.member_epoch < -2:
        raise InvalidRequest(f"member epoch {request.member_epoch}")
    if request.member_epoch == -2 and request.instance_id is None:
        raise InvalidRequest("only a static member leaves with epoch -2")
    if request.member_epoch == 0:
        _check_join(request)
    if request.topic_names is not None and len(request.topic_names) > MAX_SUBSCRIBED_TOPICS:
        raise InvalidRequest(f"{len(request.topic_names)} topic names; at most {MAX_SUBSCRIBED_TOPICS}")
    if request.assignor is not None and request.assignor not in ASSIGNORS:
        raise UnsupportedAssignor(f"no assignor {request.assignor[:64]!r}; there are {', '.join(ASSIGNORS)}")
    if request.topic_pattern:
        check_pattern(request.topic_pattern)


def _check_join(request: ConsumerHeartbeat) -> None:
    if request.rebalance_timeout_ms is None:
        raise InvalidRequest("a member that joins says its rebalance time-out")
    if request.owned is None or request.owned:
        raise InvalidRequest("a member that joins owns no partitions, and says so")
    if request.topic_names is None and request.topic_pattern is None:
        raise InvalidRequest("a member that joins subscribes to topics or to a pattern")


def check_epoch(member: ConsumerMember, request: ConsumerHeartbeat) -> None:
    """The member's own epoch, or the one before it if the answer with the newer one may have been lost."""
    if request.member_epoch == member.member_epoch:
        return
    repeats = request.member_epoch == member.previous_epoch and request.owned is not None
    if not repeats or not (request.owned or frozenset()) <= member.assigned:
        raise FencedMemberEpoch(
            f"member {member.member_id} is at epoch {member.member_epoch}, not at {request.member_epoch}"
        )


def is_full(request: ConsumerHeartbeat) -> bool:
    """It says everything, so it wants to hear everything."""
    says_topics = request.topic_names is not None or request.topic_pattern is not None
    return request.member_epoch == 0 or (
        request.rebalance_timeout_ms is not None and says_topics and request.owned is not None
    )

"""The errors of lost races and fences: leases, epochs, transfers, and the sequences of idempotent producers."""

from __future__ import annotations

from streamhouse.core.errors.base import StreamHouseError


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
    default_hint = "two processes use one agent id; give each its own"


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

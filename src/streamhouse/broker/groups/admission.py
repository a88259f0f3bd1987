"""Who may join a classic group. Pure."""

from __future__ import annotations

from collections.abc import Collection

from streamhouse.broker.groups.contract import JoinRequest
from streamhouse.broker.groups.options import MAX_ROSTER_BYTES, GroupOptions
from streamhouse.broker.groups.roster import Roster
from streamhouse.core.errors import GroupFull, InconsistentProtocol, InvalidSessionTimeout


def check_join(
    request: JoinRequest, *, roster: Roster, pending: Collection[str], protocol_type: str, options: GroupOptions
) -> None:
    """Raises what keeps the member out."""
    if not options.min_session_timeout_ms <= request.session_timeout_ms <= options.max_session_timeout_ms:
        raise InvalidSessionTimeout(
            f"a session time-out of {request.session_timeout_ms} ms; this cluster takes "
            f"{options.min_session_timeout_ms} to {options.max_session_timeout_ms}"
        )
    if not _has_room(request, roster, pending, options.max_size):
        raise GroupFull(f"group {request.group_id} has {len(roster)} members")
    if not request.protocol_type or not request.protocols:
        raise InconsistentProtocol(f"a member of group {request.group_id} names no protocol")
    if len(roster):
        if request.protocol_type != protocol_type:
            raise InconsistentProtocol(f"group {request.group_id} is of type {protocol_type!r}")
        if not roster.has_in_common(request.protocols):
            raise InconsistentProtocol(f"group {request.group_id} has no protocol in common with this member")


def _has_room(request: JoinRequest, roster: Roster, pending: Collection[str], max_size: int) -> bool:
    if request.member_id in roster:
        return True
    if request.instance_id is not None and roster.static_id(request.instance_id) is not None:
        return True
    taken = len(roster) if request.member_id in pending else len(roster) + len(pending)
    return taken < max_size and roster.weight_bytes < MAX_ROSTER_BYTES

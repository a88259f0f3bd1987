"""Members that have said nothing since their group was taken over, and for how long. Pure.

A coordinator that takes a group over does not know when each member was last heard of, so it gives every member its
whole session. When coordinators die faster than a session ends, a dead member would begin one session after the other,
and keep its partitions for ever. Therefore a coordinator writes down, every few seconds, which members have been silent
since it took over and for how long, and the next coordinator counts on from there.

Only the time in which a coordinator served the group counts: while there was none, no member could be heard of. A
member that is heard of once has its whole session again, and the store is told at once if it says otherwise. A group
whose members all speak writes nothing: they do so within seconds after a take-over, before the first step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

STEP_MS: Final = 5_000
"""How often silence is written down, and the least time that a member has after a take-over: clients heartbeat every
three to five seconds, and at once when they have found a new coordinator."""


class Silence:
    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        """By member, the silence under earlier coordinators. A member that is heard of is not in it any more."""
        self._since_ms = 0
        self._written: dict[str, int] = {}
        """As of the last step; what the store has, or is about to have."""

    def begin(self, sessions_ms: Mapping[str, int], before_ms: Mapping[str, int], now_ms: int) -> dict[str, int]:
        """The group was taken over with these members. Returns by when each of them must have been heard of."""
        self._before = {member_id: before_ms.get(member_id, 0) for member_id in sessions_ms}
        self._since_ms = now_ms
        self._written = {member_id: ms for member_id, ms in self._before.items() if ms}
        return {
            member_id: now_ms + min(session_ms, max(session_ms - self._before[member_id], STEP_MS))
            for member_id, session_ms in sessions_ms.items()
        }

    def forget(self, member_id: str) -> bool:
        """The member was heard of, or has left. Returns whether the store has an entry for it: delete that at once."""
        self._before.pop(member_id, None)
        return self._written.pop(member_id, None) is not None

    def step(self, now_ms: int) -> bool:
        """Add up the silence of each member. Returns whether there are silent members, which must be written."""
        served_ms = now_ms - self._since_ms
        self._written = {member_id: before_ms + served_ms for member_id, before_ms in self._before.items()}
        return self.goes_on

    @property
    def goes_on(self) -> bool:
        """Whether another step is needed."""
        return bool(self._before)

    def marks(self) -> tuple[tuple[str, int], ...]:
        """What to write: silent members with milliseconds, by id, as of the last step."""
        return tuple(sorted(self._written.items()))

"""What both kinds of group have in common: the effects of one event, and members that are silent after a take-over.

A coordinator that takes a group over does not know when each member sent its last request, so it gives every member a
whole session. If coordinators died faster than a session ends, a dead member would get one session after the other and
keep its partitions. Therefore a coordinator saves, every five seconds, which members have sent nothing since it took
the group over, and for how long. The next coordinator counts on from there.

Only the time in which a coordinator served the group counts: without a coordinator, no member can be heard. A member
that sends a request has its whole session again, and its entry in the store is deleted at once. A group whose members
all send requests saves nothing: they do so within seconds after a take-over, before the first step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streamhouse.broker.groups.contract import Answer, Effect, Effects, Save, Ticket, Timer, TimerKey, TimerKind

STEP_MS: Final = 5_000
"""How often silence is saved, and the least time that a member has after a take-over: clients send heartbeats every
three to five seconds, and at once when they have found a new coordinator."""
_SILENCE: Final = TimerKey(TimerKind.SILENCE)


class Silence:
    """The members that have sent nothing since the take-over, and for how long."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        """The silence of each member under earlier coordinators. A member that sends a request is removed."""
        self._since_ms = 0
        self._written: dict[str, int] = {}
        """What the store has, or will have soon, as of the last step."""

    def begin(self, sessions_ms: Mapping[str, int], before_ms: Mapping[str, int], now_ms: int) -> dict[str, int]:
        """The group was taken over with these members. Returns when the session of each of them ends."""
        self._before = {member_id: before_ms.get(member_id, 0) for member_id in sessions_ms}
        self._since_ms = now_ms
        self._written = {member_id: ms for member_id, ms in self._before.items() if ms}
        return {
            member_id: now_ms + min(session_ms, max(session_ms - self._before[member_id], STEP_MS))
            for member_id, session_ms in sessions_ms.items()
        }

    def forget(self, member_id: str) -> bool:
        """The member has sent a request, or has left. Returns whether the store has an entry that must be deleted."""
        self._before.pop(member_id, None)
        return self._written.pop(member_id, None) is not None

    def step(self, now_ms: int) -> bool:
        """Add up the silence of each member. Returns whether there are silent members, which must be saved."""
        served_ms = now_ms - self._since_ms
        self._written = {member_id: before_ms + served_ms for member_id, before_ms in self._before.items()}
        return self.goes_on

    @property
    def goes_on(self) -> bool:
        """Whether another step is needed."""
        return bool(self._before)

    def marks(self) -> tuple[tuple[str, int], ...]:
        """What to save: silent members with milliseconds, by id, as of the last step."""
        return tuple(sorted(self._written.items()))


class Machine:
    """Collects the effects of one event; ``_take`` returns them."""

    def __init__(self) -> None:
        self._out: list[Effect] = []
        self.silence = Silence()

    def _taken_over(self, sessions_ms: Mapping[str, int], silent_ms: Mapping[str, int], now_ms: int) -> None:
        """Start the sessions of members that another coordinator had. ``silent_ms``: the silence that it saved."""
        for member_id, end_ms in self.silence.begin(sessions_ms, silent_ms, now_ms).items():
            self._timer(TimerKey(TimerKind.SESSION, member_id), end_ms)
        if self.silence.goes_on:
            self._timer(_SILENCE, now_ms + STEP_MS)

    def _on_silence_timer(self, now_ms: int) -> None:
        if self.silence.step(now_ms):
            self._save()
            self._timer(_SILENCE, now_ms + STEP_MS)

    def _not_silent(self, member_id: str) -> None:
        """The member has sent a request, or is gone."""
        if self.silence.forget(member_id):
            self._save()

    def _timer(self, key: TimerKey, at_ms: int | None) -> None:
        self._out.append(Timer(key, at_ms))

    def _save(self) -> None:
        self._out.append(Save())

    def _answer(self, ticket: Ticket, result: object, *, after_save: bool = False) -> None:
        self._out.append(Answer(ticket, result, after_save))

    def _take(self) -> Effects:
        out, self._out = self._out, []
        return out

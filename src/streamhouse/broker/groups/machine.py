"""What both kinds of group machine have in common: the effects of one event, and members that are silent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streamhouse.broker.groups.contract import Answer, Effect, Effects, Save, Ticket, Timer, TimerKey, TimerKind
from streamhouse.broker.groups.silence import STEP_MS, Silence

_SILENCE: Final = TimerKey(TimerKind.SILENCE)


class Machine:
    def __init__(self) -> None:
        self._out: list[Effect] = []
        self.silence = Silence()

    def _taken_over(self, sessions_ms: Mapping[str, int], silent_ms: Mapping[str, int], now_ms: int) -> None:
        """Begin the sessions of members that another coordinator had; ``silent_ms``: what it wrote about them."""
        for member_id, end_ms in self.silence.begin(sessions_ms, silent_ms, now_ms).items():
            self._timer(TimerKey(TimerKind.SESSION, member_id), end_ms)
        if self.silence.goes_on:
            self._timer(_SILENCE, now_ms + STEP_MS)

    def _on_silence_timer(self, now_ms: int) -> None:
        if self.silence.step(now_ms):
            self._save()
            self._timer(_SILENCE, now_ms + STEP_MS)

    def _not_silent(self, member_id: str) -> None:
        """It was heard of, or is gone."""
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

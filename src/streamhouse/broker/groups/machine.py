"""What both kinds of group machine have in common: effects collected while one event is worked on."""

from __future__ import annotations

from streamhouse.broker.groups.contract import Answer, Effect, Effects, Save, Ticket, Timer, TimerKey


class Machine:
    def __init__(self) -> None:
        self._out: list[Effect] = []

    def _timer(self, key: TimerKey, at_ms: int | None) -> None:
        self._out.append(Timer(key, at_ms))

    def _save(self) -> None:
        self._out.append(Save())

    def _answer(self, ticket: Ticket, result: object, *, after_save: bool = False) -> None:
        self._out.append(Answer(ticket, result, after_save))

    def _take(self) -> Effects:
        out, self._out = self._out, []
        return out

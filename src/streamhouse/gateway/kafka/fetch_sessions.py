"""Fetch sessions (KIP-227): what a consumer reads is named once, then only what changes. Pure; no IO.

    (id, epoch)   (0, -1)  no session          (0, 0)   a new one, if there is room; else the answer says id 0
                  (id, 0)  close that, begin a new one   (id, -1)  close that, no session
                  (id, n)  go on: n must be the one expected (71), the id known (70), names and ids not mixed (106)

An answer within a session lists only partitions with records, an error, or a watermark or log start other than last
told. Partitions that gave records go to the end, so that in a full answer every partition gets a turn.

Bounded in sessions and in partitions of all of them. A full cache gives up its least recently used session once that is
stale, or a smaller one that has had its time; as in Apache Kafka, so that a crowd of short-lived clients cannot push a
large consumer out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from streamhouse.core.clock import Clock
from streamhouse.core.limits import MAX_SESSION_PARTITIONS
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.hot.fetch import FetchPartition, FetchRequest, PartitionAnswer, TopicRef

NO_SESSION: Final = 0
_FIRST_EPOCH: Final = 0
_FINAL_EPOCH: Final = -1
_MAX_EPOCH: Final = 2**31 - 1
_MAX_ID: Final = 2**31 - 1
_BY_ID_FROM_VERSION: Final = 13
_EVICTABLE_AFTER_MS: Final = 120_000
"""Kafka's min.incremental.fetch.session.eviction.ms."""

Wanted = tuple[TopicRef, FetchPartition]


class _Told:
    """One partition of a session: what is wanted of it, and what the client was last told."""

    __slots__ = ("high_watermark", "log_start_offset", "wanted")

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.high_watermark = -1
        self.log_start_offset = -1

    def has_changed(self, answer: PartitionAnswer) -> bool:
        """Whether the client must get this answer. Remembers it as sent."""
        changed = bool(answer.size_bytes)
        if answer.high_watermark != self.high_watermark:
            self.high_watermark, changed = answer.high_watermark, True
        if answer.log_start_offset != self.log_start_offset:
            self.log_start_offset, changed = answer.log_start_offset, True
        if answer.error_code or answer.diverging is not None:
            self.high_watermark, changed = -1, True  # so that its recovery is a change too
        return changed


class _Session:
    __slots__ = ("by_id", "created_ms", "epoch", "last_used_ms", "partitions", "session_id")

    def __init__(self, session_id: int, *, by_id: bool, now_ms: int) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.created_ms = self.last_used_ms = now_ms
        self.epoch = 1
        self.partitions: dict[tuple[TopicRef, int], _Told] = {}


class FetchContext:
    """One fetch: what to read, then which answers to send. If ``error_code`` is set, the answer is only this error."""

    __slots__ = ("_by_id", "_new", "_session", "_sessions", "error_code", "wanted")

    def __init__(
        self,
        wanted: Sequence[Wanted],
        *,
        sessions: FetchSessions | None = None,
        session: _Session | None = None,
        new: bool = False,
        by_id: bool = False,
        error_code: int = 0,
    ) -> None:
        self.wanted = wanted
        self.error_code = error_code
        self._sessions = sessions
        self._session = session
        self._new = new
        self._by_id = by_id

    def tell(self, answers: Sequence[PartitionAnswer]) -> tuple[int, Sequence[int]]:
        """Return the session id and the indexes of the answers to send. ``answers`` has one for each of ``wanted``."""
        if self._session is not None:
            return self._session.session_id, _changes_of(self._session, self.wanted, answers)
        everything = range(len(answers))
        if not self._new or self._sessions is None:
            return NO_SESSION, everything
        return self._sessions.create(self.wanted, answers, by_id=self._by_id), everything


def _changes_of(session: _Session, wanted: Sequence[Wanted], answers: Sequence[PartitionAnswer]) -> list[int]:
    changes = []
    for place, (topic, partition) in enumerate(wanted):
        name = (topic, partition.partition)
        told = session.partitions.get(name)
        if told is None:
            continue  # forgotten by a request that came meanwhile, which the client must have given up this one for
        if told.has_changed(answers[place]):
            changes.append(place)
            if answers[place].size_bytes:
                session.partitions[name] = session.partitions.pop(name)
    return changes


class FetchSessions:
    def __init__(
        self, *, clock: Clock, max_sessions: int, max_partitions: int = MAX_SESSION_PARTITIONS, first_id: int = 1
    ) -> None:
        """``first_id``: other than in the last run, so that no client goes on with a session that is another's now."""
        self._clock = clock
        self._max_sessions = max_sessions
        self._max_partitions = max_partitions
        self._next_id = first_id
        self._sessions: dict[int, _Session] = {}
        """The least recently used comes first."""
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """The number of partitions of all sessions."""
        return self._partitions

    def begin(self, version: int, request: FetchRequest) -> FetchContext:
        epoch = request.session_epoch
        if epoch in (_FIRST_EPOCH, _FINAL_EPOCH):
            if request.session_id != NO_SESSION:
                self._remove(request.session_id)
            by_id = version >= _BY_ID_FROM_VERSION
            return FetchContext(
                _wanted_of(request), sessions=self, new=epoch == _FIRST_EPOCH and bool(request.topics), by_id=by_id
            )
        return self._go_on(version, request)

    def create(self, wanted: Sequence[Wanted], answers: Sequence[PartitionAnswer], *, by_id: bool) -> int:
        """The id of a new session; 0 when there is no room for it."""
        now_ms = self._clock.boot_ms()
        if not self._make_room(len(wanted), now_ms):
            return NO_SESSION
        while self._next_id in self._sessions:
            self._next_id = self._next_id % _MAX_ID + 1
        session = _Session(self._next_id, by_id=by_id, now_ms=now_ms)
        self._next_id = self._next_id % _MAX_ID + 1
        for each, answer in zip(wanted, answers, strict=True):
            told = _Told(each)
            told.has_changed(answer)
            session.partitions[(each[0], each[1].partition)] = told
        self._sessions[session.session_id] = session
        self._partitions += len(session.partitions)
        return session.session_id

    def _go_on(self, version: int, request: FetchRequest) -> FetchContext:
        session = self._sessions.get(request.session_id)
        if session is None:
            return FetchContext((), error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if request.session_epoch != session.epoch:
            return FetchContext((), error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != (version >= _BY_ID_FROM_VERSION):
            return FetchContext((), error_code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        self._update(session, request)
        if not session.partitions:
            self._remove(session.session_id)
            return FetchContext(())
        if self._partitions > self._max_partitions:
            self._remove(session.session_id)  # the client begins anew, and goes without
            return FetchContext((), error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.epoch = session.epoch + 1 if session.epoch < _MAX_EPOCH else 1
        session.last_used_ms = self._clock.boot_ms()
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        return FetchContext([told.wanted for told in session.partitions.values()], session=session)

    def _update(self, session: _Session, request: FetchRequest) -> None:
        before = len(session.partitions)
        for topic, partitions in request.topics:
            for partition in partitions:
                told = session.partitions.get((topic, partition.partition))
                if told is None:
                    session.partitions[(topic, partition.partition)] = _Told((topic, partition))
                else:
                    told.wanted = (topic, partition)
        for topic, numbers in request.forgotten:
            for number in numbers:
                session.partitions.pop((topic, number), None)
        self._partitions += len(session.partitions) - before

    def _make_room(self, partitions: int, now_ms: int) -> bool:
        while (
            len(self._sessions) >= self._max_sessions or self._partitions + partitions > self._max_partitions
        ) and self._evict(partitions, now_ms):
            pass
        return len(self._sessions) < self._max_sessions and self._partitions + partitions <= self._max_partitions

    def _evict(self, partitions: int, now_ms: int) -> bool:
        """Let go of one that is worth less than a new one with so many partitions. False when there is none."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.last_used_ms > _EVICTABLE_AFTER_MS:
            self._remove(oldest.session_id)
            return True
        smaller = [
            session
            for session in self._sessions.values()
            if now_ms - session.created_ms > _EVICTABLE_AFTER_MS and len(session.partitions) < partitions
        ]
        if not smaller:
            return False
        self._remove(min(smaller, key=lambda session: len(session.partitions)).session_id)
        return True

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.partitions)


def _wanted_of(request: FetchRequest) -> list[Wanted]:
    return [(topic, partition) for topic, partitions in request.topics for partition in partitions]

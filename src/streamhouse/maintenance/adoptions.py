"""Finds the uploads of Spark sinks that this agent's partitions have to adopt, and adopts them (R13).

Looks when the metadata tells of intents, when a partition is opened here, and every ten seconds, because notifications
may be lost. log/leased/adoption.py verifies and adopts. An upload that cannot be adopted shows in the agent's health
and in its log, and is tried again with a backoff. Only its own sink waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from streamhouse.core.backoff import Backoff
from streamhouse.core.clock import Clock
from streamhouse.core.errors import NotLeader, StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.log.leased.adoption import Adoption, Share, shares_of
from streamhouse.log.leased.log import LeasedLog
from streamhouse.maintenance.background import Background, Report, unheard
from streamhouse.metadata.contract import ChangeKind, IntentKey, IntentSlice, MetadataStore

_RECHECK_S: Final = 10.0
"""Notifications may be lost; a sink waits for minutes."""
_BETWEEN_LOOKS_S: Final = 0.02
_REST_AFTER_LOOK: Final = 5
"""Times what a look took. It asks about every partition led here, each that is opened is a reason for one, and on
SQLite any commit of another process may be an intent.
"""
_LONGEST_REST_S: Final = 1.0
_AT_A_TIME: Final = 16
_BACKOFF: Final = Backoff(first_ms=500, longest_ms=60_000)
_QUIET_TRIES: Final = 3
_HEALTH: Final = "adoption"
_LISTENING: Final = "intent notifications"

_log = logging.getLogger(__name__)

Todo = tuple[IntentKey, int]


@dataclass(slots=True, kw_only=True)
class _Failure:
    tries: int
    next_try_ms: int
    error: Exception


class Adoptions:
    def __init__(
        self,
        *,
        adoption: Adoption,
        metadata: MetadataStore,
        log: LeasedLog,
        clock: Clock,
        report: Report = unheard,
    ) -> None:
        self._adoption = adoption
        self._metadata = metadata
        self._log = log
        self._clock = clock
        self._report = report
        self._loops = Background(report)
        self._look_now = asyncio.Event()
        self._gate = asyncio.Semaphore(_AT_A_TIME)
        self._running: dict[PartitionKey, asyncio.Task[None]] = {}
        self._verified: set[Todo] = set()
        self._failures: dict[Todo, _Failure] = {}

    def start(self) -> None:
        self._loops.start(_LISTENING, self._listen)
        self._loops.start("partitions to adopt for", self._notice_openings)
        self._loops.start("uploads to adopt", self._look)

    async def close(self) -> None:
        await self._loops.close()
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # When to look.

    async def _listen(self) -> None:
        async with self._metadata.subscribe() as changes:
            self._loops.works(_LISTENING)
            self._look_now.set()  # whatever happened before the subscription began
            async for change in changes:
                if change.kind in (ChangeKind.INTENTS, ChangeKind.ANY):
                    self._look_now.set()
        await asyncio.sleep(_RECHECK_S)  # it has ended by itself; not again at once

    async def _notice_openings(self) -> None:
        await self._log.wait_any_opened()
        self._look_now.set()

    async def _look(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._until_next_look_s()):
                await self._look_now.wait()
        self._look_now.clear()
        begun_s = asyncio.get_running_loop().time()
        led = self._log.led_keys()
        todo = await self._metadata.list_unadopted(list(led)) if led else []
        took_s = asyncio.get_running_loop().time() - begun_s
        self._forget_all_but(todo)
        due = [each for each in todo if self._is_due(each)]
        if due:
            await self._begin(due)
        await asyncio.sleep(min(max(_BETWEEN_LOOKS_S, _REST_AFTER_LOOK * took_s), _LONGEST_REST_S))

    def _until_next_look_s(self) -> float:
        now_ms = self._clock.boot_ms()
        retries = [max(0, failure.next_try_ms - now_ms) / 1000 for failure in self._failures.values()]
        return min([_RECHECK_S, *retries])

    def _is_due(self, todo: Todo) -> bool:
        failure = self._failures.get(todo)
        return failure is None or failure.next_try_ms <= self._clock.boot_ms()

    # One partition at a time each, several partitions at once.

    async def _begin(self, todo: Iterable[Todo]) -> None:
        wanted: dict[PartitionKey, list[IntentKey]] = {}
        for intent, partition in todo:
            key = PartitionKey(intent.topic_id, partition)
            if key not in self._running:  # else it looks again at its end
                wanted.setdefault(key, []).append(intent)
        slices = await self._slices(dict.fromkeys(intent for intents in wanted.values() for intent in intents))
        for key, intents in wanted.items():
            shares = shares_of([(intent, slices[intent]) for intent in intents if intent in slices], key.partition)
            if shares:
                task = asyncio.create_task(self._adopt_all(shares), name=f"adopt-{key}")
                self._running[key] = task
                task.add_done_callback(lambda task, key=key: self._ended(key, task))  # type: ignore[misc]

    async def _slices(self, intents: Iterable[IntentKey]) -> dict[IntentKey, tuple[IntentSlice, ...]]:
        found: dict[IntentKey, tuple[IntentSlice, ...]] = {}
        for key in intents:
            intent = await self._metadata.get_intent(key)
            if intent is not None:  # else complete and replaced meanwhile
                found[key] = intent.slices
        return found

    async def _adopt_all(self, shares: list[Share]) -> None:
        for share in shares:
            async with self._gate:
                if not await self._adopt(share):
                    return

    async def _adopt(self, share: Share) -> bool:
        """False when the partition is not ours any more. What fails does not hold up the shares of other queries."""
        todo = (share.intent, share.partition)
        try:
            if todo not in self._verified:
                await self._adoption.verify(share)
                self._verified.add(todo)
            await self._adoption.adopt(share)
        except NotLeader:
            return False
        except (StreamHouseError, OSError) as error:
            self._failed(todo, share, error)
        else:
            self._verified.discard(todo)
            self._failures.pop(todo, None)
            self._tell_health()
        return True

    def _ended(self, key: PartitionKey, task: asyncio.Task[None]) -> None:
        self._running.pop(key, None)
        self._look_now.set()  # for what was registered meanwhile
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"an adoption for {key} failed; it is tried again", "exception": error}
            )

    # What goes wrong.

    def _failed(self, todo: Todo, share: Share, error: Exception) -> None:
        tries = self._failures[todo].tries + 1 if todo in self._failures else 1
        next_try_ms = self._clock.boot_ms() + _BACKOFF.step_ms(tries)
        self._failures[todo] = _Failure(tries=tries, next_try_ms=next_try_ms, error=error)
        passes = isinstance(error, StreamHouseError) and error.retriable  # by itself, mostly
        if tries >= _QUIET_TRIES or not passes:
            _log.error("%s cannot be adopted for %s: %s", share, share.key, error)
        self._tell_health()

    def _tell_health(self) -> None:
        if not self._failures:
            self._report(_HEALTH, None)
            return
        todo, failure = next(iter(self._failures.items()))
        more = f" (and {len(self._failures) - 1} more)" if len(self._failures) > 1 else ""
        intent, partition = todo
        self._report(
            _HEALTH,
            StreamHouseError(
                f"batch {intent.batch_id} of query {intent.query_id} cannot be adopted for partition {partition} of"
                f" {intent.topic_id}: {failure.error}{more}"
            ),
        )

    def _forget_all_but(self, todo: Iterable[Todo]) -> None:
        """Adopted elsewhere, or not led here any more."""
        alive = set(todo)
        self._verified &= alive
        gone = [each for each in self._failures if each not in alive]
        for each in gone:
            del self._failures[each]
        if gone:
            self._tell_health()

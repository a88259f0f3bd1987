"""What is wrong with this process, since when, and what to do: the answer of ``/readyz``.

Collects the outages that the parts of the process know of: the membership's problems, the flushes, the object store's
retries, the write-ahead log. Several parts notice when a store is away; that is one problem, with the earliest time.

An idle process calls no store, and would say "ready" while its stores are away. So a question for the health also asks
both stores, at most every few seconds, and waits a moment for them. Repairs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final
from uuid import UUID

from streamhouse.app.agent import Agent
from streamhouse.app.log_parts import LOST_COMMITS, WAL_DISK
from streamhouse.app.stores import Stores
from streamhouse.cluster.contract import HealthState
from streamhouse.cluster.problems import METADATA_STORE, OBJECT_STORE, Problems
from streamhouse.core.clock import Clock
from streamhouse.core.errors import MetadataError, ObjectNotFound, StoreError
from streamhouse.core.outage import Outage
from streamhouse.gateway.admin.health import HealthProblem, HealthReport
from streamhouse.log.leased.commit import COMMITTING, UPLOADING
from streamhouse.log.reader.damage import HEALTH as DAMAGED_OBJECTS
from streamhouse.objectstore.keys import ProbeKey

_PROBE_EVERY_MS: Final = 5_000
_PROBE_TIMEOUT_S: Final = 5.0
_PROBE_WAIT_S: Final = 0.5  # Kubernetes waits one second for the answer
_PROBED_KEY: Final = str(ProbeKey(created_ms=0, object_id=UUID(int=0)))
"""An object that does not exist: to hear that is an answer."""

_ASK_METADATA: Final = "a question to the metadata store"
_ASK_OBJECTS: Final = "a question to the object store"

_TO_DO: Final = {
    METADATA_STORE: "see that the metadata store runs and can be reached (metadata.url); agents go on by themselves",
    OBJECT_STORE: "see that the object store can be reached and takes these credentials (store.url); what was"
    " acknowledged is safe, and uploads go on by themselves",
    WAL_DISK: "free space on this disk, or enlarge it; remove nothing from the directories of StreamHouse",
    DAMAGED_OBJECTS: "bring the object back from a backup or a bucket version, or skip the range: docs/reading.md",
    LOST_COMMITS: "follow docs/operations.md, “A fail-over that lost commits”; restart the agent afterwards",
}
_TO_DO_ELSE: Final = "it is tried again; if it goes on, see the log of this process"
_BLOCKING: Final = frozenset({METADATA_STORE, OBJECT_STORE, WAL_DISK})
_STATES: Final = {
    HealthState.STARTING: ("it starts", "wait; its log says what it waits for"),
    HealthState.STOPPING: ("it stops and hands its partitions over", "wait"),
    HealthState.STOPPED: ("it has stopped", "start it again"),
    HealthState.FAILED: ("it cannot go on", "restart it"),
}


class ProcessHealth:
    """The health of one process. It exists before the parts of the process do."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._stores: Stores | None = None
        self._agent: Agent | None = None
        self._state = HealthState.STARTING
        self._changed_ms = clock.wall_ms()
        self._problems = Problems(clock=clock)
        """The problems of a process without an agent. An agent's membership has its own list."""
        self._probe: asyncio.Task[None] | None = None
        self._probed_ms: int | None = None

    def opened(self, stores: Stores) -> None:
        self._stores = stores

    def serves(self, agent: Agent | None) -> None:
        self._agent = agent
        self._change(HealthState.OK)

    async def stops(self) -> None:
        """The process calls this before its parts stop: from here on the health asks no store."""
        self._change(HealthState.STOPPING)
        self._stores = None
        probe, self._probe = self._probe, None
        if probe is not None:
            probe.cancel()
            await asyncio.gather(probe, return_exceptions=True)
        self._problems.forget()

    async def report(self) -> HealthReport:
        """Asks the stores first, unless they have just been asked, and waits for them for a moment."""
        if self._stores is not None and self._state is HealthState.OK:
            if self._probe is None and self._is_due():
                self._probe = asyncio.create_task(self._ask(self._stores), name="health-probe")
            if self._probe is not None:
                await asyncio.wait([self._probe], timeout=_PROBE_WAIT_S)
        return self.known()

    def known(self) -> HealthReport:
        """Return what is known now, without asking a store."""
        found: dict[str, HealthProblem] = {}
        for problem in (*self._of_states(), *(self._of_outage(outage) for outage in self._outages())):
            earlier = found.get(problem.what)
            if earlier is None or problem.since_ms < earlier.since_ms:
                found[problem.what] = problem
        ordered = sorted(found.values(), key=lambda each: (not each.blocks, each.since_ms))
        return HealthReport(process=self._name(), problems=ordered)

    def _change(self, state: HealthState) -> None:
        self._state, self._changed_ms = state, self._clock.wall_ms()

    def _name(self) -> str:
        if self._agent is not None:
            return f"agent {self._agent.member.describe().agent_id}"
        return "server without an agent" if self._state is HealthState.OK else "this process"

    def _of_states(self) -> Iterator[HealthProblem]:
        state, reason = self._state, ""
        if self._agent is not None and state is HealthState.OK:
            wal, member = self._agent.wal.health, self._agent.member.health
            if not wal.ok:
                state, reason = HealthState.FAILED, wal.reason or ""
            elif member.state in _STATES:
                state, reason = member.state, member.reason
        if state in _STATES:
            text, to_do = _STATES[state]
            yield HealthProblem(
                what="this process",
                problem=f"{text}: {reason}" if reason else text,
                since_ms=self._changed_ms if state is self._state else self._clock.wall_ms(),
                what_to_do=to_do,
                blocks=True,
            )

    def _outages(self) -> Iterator[Outage]:
        if self._stores is not None and self._stores.objects.outage.active:
            yield self._stores.objects.outage
        yield from self._problems.outages()
        if self._agent is not None:
            yield from self._agent.member.outages()
            yield from self._agent.log.outages()

    def _of_outage(self, outage: Outage) -> HealthProblem:
        what = _cause(outage.what)
        return HealthProblem(
            what=what,
            problem=outage.problem,
            since_ms=outage.since_ms,
            what_to_do=_TO_DO.get(what, _TO_DO_ELSE),
            blocks=what in _BLOCKING,
        )

    # The probe.

    def _is_due(self) -> bool:
        return self._probed_ms is None or self._clock.boot_ms() - self._probed_ms >= _PROBE_EVERY_MS

    async def _ask(self, stores: Stores) -> None:
        try:
            await asyncio.gather(self._ask_metadata(stores), self._ask_objects(stores))
        finally:
            self._probed_ms = self._clock.boot_ms()
            self._probe = None

    async def _ask_metadata(self, stores: Stores) -> None:
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                await stores.metadata.now_ms()
        except (MetadataError, TimeoutError) as error:
            self._tell(_ASK_METADATA, error)
        else:
            self._tell(_ASK_METADATA, None)

    async def _ask_objects(self, stores: Stores) -> None:
        """Asks with the retries of every other request: while the store is away, they notice when it is back."""
        try:
            await stores.objects.head(_PROBED_KEY)
        except ObjectNotFound:
            self._tell(_ASK_OBJECTS, None)
        except StoreError as error:
            self._tell(_ASK_OBJECTS, error)

    def _tell(self, where: str, error: Exception | None) -> None:
        report = self._problems.report if self._agent is None else self._agent.member.report
        report(where, error)


def _cause(what: str) -> str:
    """One name for the outages of one store, whichever part noticed them."""
    if what.startswith(OBJECT_STORE) or what in (UPLOADING, _ASK_OBJECTS):
        return OBJECT_STORE
    if what in (COMMITTING, _ASK_METADATA):
        return METADATA_STORE
    return what

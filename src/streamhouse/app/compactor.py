"""The process of `streamhouse compactor`: runs the maintenance service until it is told to stop, and stops in order.

The HTTP port opens first and says "it starts", then the stores are opened as for a pass of maintenance: a cluster that
does not exist is not made (maintenance_passes.py). SIGTERM and SIGINT stop the process; a second signal ends it at
once, which loses nothing.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from streamhouse.app.compactor_http import CompactorHealth, CompactorHttp
from streamhouse.app.compactor_metrics import of_service, of_usage
from streamhouse.app.costs_page import costs_page
from streamhouse.app.log_parts import upkeep_options
from streamhouse.app.logs import set_up_logs
from streamhouse.app.maintenance_passes import MaintenancePasses, open_maintenance
from streamhouse.app.metrics import of_process, of_stores
from streamhouse.core.clock import Clock, SystemClock
from streamhouse.core.errors import InvalidSetting
from streamhouse.core.limits import MAX_AGENT_ID_BYTES
from streamhouse.core.metrics import Metrics
from streamhouse.core.randomness import Randomness, SystemRandomness
from streamhouse.core.settings import Settings
from streamhouse.core.urls import mask_url
from streamhouse.maintenance.service import CompactionService, ServiceOptions
from streamhouse.maintenance.service.usage import PrefixUsage
from streamhouse.objectstore.metering import MeterReading, StoredUsage

_log = logging.getLogger(__name__)
_ID_HINT: Final = "choose a name of letters and digits: --id"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorStarted:
    """What a person is told when the process is ready."""

    compactor_id: str
    topics: int
    partitions: int
    addresses: Sequence[str]
    """host:port of the HTTP port; none if the settings turn it off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorEnded:
    was_ready: bool
    gave_back: bool
    """False when a store did not answer at the end, so that claims and pins run out by themselves."""


@dataclass(slots=True)
class _Process:
    """The parts of the process. Each is None until it is there."""

    settings: Settings
    compactor_id: str
    clock: Clock
    randomness: Randomness
    health: CompactorHealth
    metrics: Metrics = field(default_factory=Metrics)
    http: CompactorHttp | None = None
    maintenance: MaintenancePasses | None = None
    usage: dict[str, PrefixUsage] = field(default_factory=dict)
    started_boot_ms: int = field(init=False)

    def __post_init__(self) -> None:
        self.started_boot_ms = self.clock.boot_ms()

    def billing(self) -> MeterReading | None:
        return None if self.maintenance is None else self.maintenance.stores.meter.read()

    def costs(self) -> dict[str, object] | None:
        if self.maintenance is None:
            return None
        up_s = (self.clock.boot_ms() - self.started_boot_ms) / 1000
        return costs_page(self.maintenance.stores.meter, up_s=up_s)

    def take_usage(self, usage: dict[str, PrefixUsage]) -> None:
        self.usage = usage
        if self.maintenance is not None:
            self.maintenance.stores.meter.stored = StoredUsage(
                objects=sum(each.objects for each in usage.values()),
                bytes=sum(each.bytes for each in usage.values()),
                scanned_at_ms=self.clock.wall_ms(),
            )


def service_options(settings: Settings, names: Sequence[str]) -> ServiceOptions:
    """What the settings of the cluster say; none of ``names`` means all topics. ``maintenance.enabled`` counts for
    agents alone."""
    agent = upkeep_options(settings)
    return ServiceOptions(
        names=frozenset(names) if names else None,
        bytes_per_second=agent.compaction_bytes_per_second,
        compaction_interval_ms=agent.compaction_interval_ms,
        retention_interval_ms=agent.retention_interval_ms,
        vacuum_interval_ms=agent.vacuum_interval_ms,
        rules=agent.compactor.rules,
        vacuum=agent.vacuum,
        stop_timeout_ms=settings.agent.stop_timeout_ms,
    )


async def run_compactor(
    settings: Settings,
    options: ServiceOptions,
    *,
    compactor_id: str | None,
    ready: Callable[[CompactorStarted], None],
) -> CompactorEnded:
    """Returns after a signal. Raises what stands in the way of the start: no cluster, no such topic, a taken port."""
    set_up_logs(settings.log)
    clock, randomness = SystemClock(), SystemRandomness()
    name = _checked_id(compactor_id) if compactor_id is not None else f"compactor-{randomness.uuid().hex[:12]}"
    made = _Process(
        settings=settings,
        compactor_id=name,
        clock=clock,
        randomness=randomness,
        health=CompactorHealth(f"compactor {name}", clock=clock),
    )
    stop, opening = asyncio.Event(), asyncio.current_task()

    def on_signal(number: int) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        _log.info("stopping: %s", signal.Signals(number).name)
        stop.set()
        if opening is not None:  # it may be waiting for a store that is away
            opening.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    try:
        async with AsyncExitStack() as parts:
            await _open_http(made, parts)
            service = await _open_service(made, options, parts)
            try:
                await service.start()
                opening = None
                made.health.serves(None)
                ready(_started(made, service))
                await stop.wait()
            finally:
                await made.health.stops()
                gave_back = await service.close()
    except asyncio.CancelledError:
        if opening is None or not stop.is_set():
            raise
        opening.uncancel()
        return CompactorEnded(was_ready=False, gave_back=True)
    _log.info("stopped: %s", "claims and pins are given back" if gave_back else "a store did not answer")
    return CompactorEnded(was_ready=True, gave_back=gave_back)


async def _open_http(made: _Process, parts: AsyncExitStack) -> None:
    """The port opens before anything else, and closes last. Raises ConfigError if an address is taken."""
    made.metrics.add(lambda: of_process(made.health.known))
    if made.settings.admin.enabled is False:
        return
    made.http = CompactorHttp(
        made.settings,
        compactor_id=made.compactor_id,
        clock=made.clock,
        health=made.health,
        metrics=made.metrics,
        billing=made.billing,
        costs=made.costs,
    )
    parts.push_async_callback(made.http.close)
    await made.http.bind()
    await made.http.open()


async def _open_service(made: _Process, options: ServiceOptions, parts: AsyncExitStack) -> CompactionService:
    maintenance = await parts.enter_async_context(
        open_maintenance(made.settings, clock=made.clock, randomness=made.randomness)
    )
    await maintenance.topics(
        None if options.names is None else sorted(options.names)
    )  # a mistyped name is an error, and not a topic to wait for
    made.maintenance = maintenance
    made.health.opened(maintenance.stores)
    service = CompactionService(
        metadata=maintenance.stores.metadata,
        objects=maintenance.stores.objects,
        offload=maintenance.offload,
        clock=made.clock,
        randomness=made.randomness,
        # Two processes under one name would both hold its claims, and do the same work.
        owner=f"{made.compactor_id}/{made.randomness.uuid().hex[:8]}",
        options=options,
        report=made.health.tell,
        on_usage=made.take_usage,
    )
    maintenance.stores.meter.topics.name_of = service.targets.name_of
    made.metrics.add(lambda: of_stores(maintenance.stores, max_topics=made.settings.admin.metric_topics))
    made.metrics.add(lambda: of_service(service))
    made.metrics.add(lambda: of_usage(made.usage))
    return service


def _started(made: _Process, service: CompactionService) -> CompactorStarted:
    started = CompactorStarted(
        compactor_id=made.compactor_id,
        topics=service.targets.topics,
        partitions=len(service.targets),
        addresses=[] if made.http is None else made.http.addresses,
    )
    _log.info(
        "started: compactor %s, looking after %d partitions of %d topics",
        started.compactor_id,
        started.partitions,
        started.topics,
        extra={
            "compactor": started.compactor_id,
            "metadata": mask_url(made.settings.metadata.url),
            "objects": mask_url(made.settings.store.url),
            "http": list(started.addresses),
        },
    )
    return started


def _checked_id(name: str) -> str:
    if not name.strip() or not name.isprintable():
        raise InvalidSetting(f"--id {name!r:.100} is no name", hint=_ID_HINT)
    if len(name.encode()) > MAX_AGENT_ID_BYTES:
        raise InvalidSetting(f"--id is longer than {MAX_AGENT_ID_BYTES} bytes", hint=_ID_HINT)
    return name

"""What a cluster costs on S3, as far as it can be counted: requests by process and topic, bytes by prefix and topic.

    requests   each process counts its own and shows them on its HTTP port (costs_page.py), divided between topics.
               Agents are found by the address that they register; other processes (compactors) are named by the caller
    stored     one listing of the object store; for topics, the entries of all partitions beside it (topic_shares.py)

All of it is an estimate: list prices of S3 Standard in us-east-1 (objectstore/metering.py), no transfer, no tax, no
discount. What a process had counted before its restart is not in it. Reads only.
"""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from streamhouse.app.costs_page import parse_costs_page
from streamhouse.app.maintenance_passes import MaintenancePasses
from streamhouse.app.process_pages import NoSuchPage, get_good_page
from streamhouse.app.topic_shares import TopicShares
from streamhouse.core.errors import InvalidSetting
from streamhouse.maintenance.service.usage import PrefixUsage, usage_by_prefix
from streamhouse.metadata.contract import HTTP_LISTENER, ScanRange, Topic
from streamhouse.objectstore.metering import request_cost_usd
from streamhouse.objectstore.objects import Operation

_TIMEOUT_S: Final = 5.0
_ASKED_AT_A_TIME: Final = 8
_PAGE_ENTRIES: Final = 1_000
_PATH: Final = "/costs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCost:
    """The requests of one process since its start."""

    process: str
    address: str | None
    requests: Mapping[Operation, int] = field(default_factory=dict)
    parts_by_topic: Mapping[str, Mapping[Operation, int]] = field(default_factory=dict)
    """The same requests by topic, PARTS_PER_REQUEST for each (objectstore/topic_requests.py)."""
    up_s: float | None = None
    problem: str = ""
    """Why its requests are not known; empty if they are."""

    @property
    def request_cost_usd(self) -> float:
        return request_cost_usd(self.requests)


async def costs_by_process(
    maintenance: MaintenancePasses, *, alive_within_ms: int, more: Sequence[str] = ()
) -> list[ProcessCost]:
    """The live agents, by name, and then the processes at the addresses of ``more``. One that does not answer is in the
    list with its problem. Raises MetadataError."""
    agents = await maintenance.stores.metadata.list_agents(alive_within_ms=alive_within_ms)
    asked = [(agent.agent_id, agent.listeners.get(HTTP_LISTENER)) for agent in agents]
    known = {address for _, address in asked}
    asked += [(address, address) for address in more if address not in known]
    gate = asyncio.Semaphore(_ASKED_AT_A_TIME)

    async def ask(name: str, address: str | None) -> ProcessCost:
        if address is None:
            return ProcessCost(
                process=name, address=None, problem="it has registered no HTTP address that others reach"
            )
        async with gate:
            return await asyncio.to_thread(_ask, name, address)

    return await asyncio.gather(*(ask(name, address) for name, address in asked))


def check_address(address: str) -> None:
    """Raises InvalidSetting."""
    host, _, port = address.rpartition(":")
    if not host.strip("[]") or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise InvalidSetting(
            f"{address!r:.100} is no address to ask", hint="pass --address HOST:PORT, as the process said it"
        )


def _ask(name: str, address: str) -> ProcessCost:
    host, _, port = address.rpartition(":")
    try:
        page = parse_costs_page(get_good_page(host.strip("[]"), int(port), _PATH, timeout_s=_TIMEOUT_S).body)
    except (NoSuchPage, OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        return ProcessCost(process=name, address=address, problem=_words_of(error))
    return ProcessCost(
        process=name, address=address, requests=page.requests, parts_by_topic=page.parts_by_topic, up_s=page.up_s
    )


def _words_of(error: Exception) -> str:
    """Without the number that an error of the system has in front of its words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def requests_by_topic(processes: Iterable[ProcessCost]) -> dict[str, dict[Operation, int]]:
    """PARTS_PER_REQUEST for each request of these processes, by the name of the topic, "(shared)" or "(other)"."""
    found: dict[str, dict[Operation, int]] = {}
    for process in processes:
        for topic, parts in process.parts_by_topic.items():
            row = found.setdefault(topic, {})
            for operation, more in parts.items():
                row[operation] = row.get(operation, 0) + more
    return found


# What is stored.


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCost:
    prefixes: Mapping[str, PrefixUsage]
    shares: TopicShares
    """Empty unless topics were asked for."""
    list_requests: int
    metadata_calls: int

    @property
    def total(self) -> PrefixUsage:
        return PrefixUsage(
            objects=sum(each.objects for each in self.prefixes.values()),
            bytes=sum(each.bytes for each in self.prefixes.values()),
        )


async def stored_costs(maintenance: MaintenancePasses, topics: Iterable[Topic]) -> StoredCost:
    """``topics``: those to divide what is stored between; none to leave that out. Raises MetadataError, StoreError."""
    shares, calls = TopicShares(), 0
    for topic in topics:
        shares.add_topic(topic.topic_id, topic.name, topic.partition_count)
        for key in topic.partition_keys():
            wanted, more = ScanRange(key=key, from_offset=0), True
            while more:
                pages = await maintenance.stores.metadata.scan_entries([wanted], limit=_PAGE_ENTRIES)
                calls += 1
                more = bool(pages) and pages[0].more and bool(pages[0].entries)
                for entry in pages[0].entries if pages else ():
                    shares.add_entry(topic.topic_id, entry)
                    wanted = ScanRange(key=key, from_offset=entry.end_offset + 1)
    before = _lists(maintenance)
    prefixes = await usage_by_prefix(maintenance.stores.objects, on_object=shares.add_object)
    return StoredCost(
        prefixes=prefixes, shares=shares, list_requests=_lists(maintenance) - before, metadata_calls=calls
    )


def _lists(maintenance: MaintenancePasses) -> int:
    return maintenance.stores.meter.read().totals[Operation.LIST].requests

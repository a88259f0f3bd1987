"""A process of the platform: runs until it is told to stop, and stops in order.

SIGTERM and SIGINT stop it gracefully: everything is flushed, and partitions are handed over while requests are still
answered. A second signal ends it at once, as a crash would; nothing that was acknowledged with acks=all is lost by
that.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from streamhouse.app.logs import set_up_logs
from streamhouse.app.platform import StreamHouse
from streamhouse.core.limits import MIB
from streamhouse.core.settings import Settings
from streamhouse.core.urls import mask_url

_SWITCH_INTERVAL_S: Final = 0.0005
"""How long the WAL's thread may wait for the interpreter after a sync; Python's 5 ms would be the latency."""

_GC_THRESHOLDS: Final = (1_000, 2_500, 100)
"""Thousands of batches are in memory at any time and none of them in a cycle: looking at them all is a long pause, and
so is looking at many young ones at once.
"""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_KEEP_BELOW_BYTES: Final = 64 * MIB
"""A batch of 256 KB fresh from the kernel costs its page faults each time, a third of all CPU; from the heap, none."""
_KEEP_FREE_BYTES: Final = 16 * MIB

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    failure: Exception | None
    """The reason why the agent could not go on; None after a signal."""
    left_behind: str
    """What is not in the log yet, and where it is; empty when everything is."""


async def run_until_stopped(settings: Settings, *, ready: Callable[[StreamHouse], Awaitable[None]]) -> Ended:
    tune()
    set_up_logs(settings.log)
    stop = asyncio.Event()
    opening = asyncio.current_task()

    def on_signal(number: int) -> None:
        _on_signal(stop, number)
        if opening is not None:  # it may be waiting for a store that is away
            opening.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    try:
        async with StreamHouse.open(settings) as sh:
            opening = None
            _tell_started(sh)
            await ready(sh)
            failure = await _stopped_or_failed(sh, stop)
    except asyncio.CancelledError:
        if opening is None or not stop.is_set():
            raise
        opening.uncancel()
        return Ended(failure=None, left_behind="it was not ready yet; what earlier runs left in the WAL is still there")
    left_behind = sh.left_behind or ("" if failure else "everything acknowledged is in the log")
    _log.info("stopped%s", f": {left_behind}" if left_behind else "")
    return Ended(failure=failure, left_behind=sh.left_behind)


async def _stopped_or_failed(sh: StreamHouse, stop: asyncio.Event) -> Exception | None:
    stopped = asyncio.create_task(stop.wait())
    failed = asyncio.create_task(sh.wait_fatal())
    await asyncio.wait((stopped, failed), return_when=asyncio.FIRST_COMPLETED)
    for task in (stopped, failed):
        task.cancel()
    if sh.fatal is not None:
        _log.error("stopping, because it cannot go on: %s", sh.fatal)
    return sh.fatal


def _tell_started(sh: StreamHouse) -> None:
    settings = sh.settings
    agent_id = sh.agent.member.describe().agent_id if settings.embedded_agent else None
    _log.info(
        "started: %s, durability %s",
        f"agent {agent_id}" if agent_id else "no agent",
        settings.effective_durability.value,
        extra={
            "agent": agent_id,
            "durability": settings.effective_durability.value,
            "metadata": mask_url(settings.metadata.url),
            "objects": mask_url(settings.store.url),
            "kafka": sh.kafka_addresses,
            "admin": sh.admin_addresses,
        },
    )


def tune() -> None:
    """Set up the interpreter and the memory of a process that moves batches."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.freeze()  # what was imported stays: no collection needs to look at it again
    gc.set_threshold(*_GC_THRESHOLDS)
    with suppress(OSError, AttributeError):  # another C library: it works without
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _KEEP_BELOW_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEEP_FREE_BYTES)
        libc.mallopt(_M_ARENA_MAX, 1)  # one heap for all threads: each would keep its own free memory to itself


def _on_signal(stop: asyncio.Event, number: int) -> None:
    if stop.is_set():
        # The second one: do not wait for flushes. The default action ends the process here and now.
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    _log.info("stopping: %s", signal.Signals(number).name)
    stop.set()

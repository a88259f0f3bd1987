"""A check at the start: the store answers, and it does what the contract promises.

Some servers accept ``If-None-Match`` and ignore it. On such a store the upload of a fenced agent could replace a live
object, so create-only puts are tried out.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from streamhouse.core.backoff import Backoff
from streamhouse.core.clock import Clock
from streamhouse.core.errors import (
    ObjectExists,
    StoreCredentialsMissing,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
)
from streamhouse.core.randomness import Randomness
from streamhouse.objectstore.cloud import CloudStore
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.keys import ProbeKey

WAIT_S: Final = 30.0  # a server that restarts is back by then
TELL_WAITING_S: Final = 0.5  # with the start of the process: a person at a terminal reads it within 2 s
_BACKOFF: Final = Backoff(first_ms=50, longest_ms=1_000)

_log = logging.getLogger(__name__)


async def wait_for_store(
    store: ObjectStore, *, clock: Clock, randomness: Randomness, attempt_timeout_s: float, wait_s: float = WAIT_S
) -> None:
    """Repeat ``check_store`` until the store answers. Logs once what it waits for.

    Raises StoreUnavailable when the time is up. Raises at once where waiting does not help: credentials that are wrong
    or missing, a bucket that does not exist, a server that breaks the contract.
    """
    loop = asyncio.get_running_loop()
    deadline_s, tries = loop.time() + wait_s, 0
    problem = StoreUnavailable(f"{store.url} does not answer")
    telling = loop.call_later(
        TELL_WAITING_S, lambda: _log.warning("waiting for the object store %s: %s", store.url, problem.message)
    )
    try:
        while True:
            try:
                async with asyncio.timeout(min(attempt_timeout_s, max(deadline_s - loop.time(), 0))):
                    await check_store(store, clock=clock, randomness=randomness)
                return
            except StoreCredentialsMissing:
                raise
            except StoreUnavailable as error:
                problem = error
            except TimeoutError:
                problem = StoreUnavailable(f"{store.url} does not answer in time")
            tries += 1
            pause_s = _BACKOFF.pause_s(tries, randomness)
            if loop.time() + pause_s >= deadline_s:
                raise problem
            await asyncio.sleep(pause_s)
    finally:
        telling.cancel()


async def check_store(store: ObjectStore, *, clock: Clock, randomness: Randomness) -> None:
    """Write, refuse to overwrite, read, list and delete one small object. Raises a StoreError that says what is wrong.

    Give it a store without retries: a person waits for the answer."""
    key = str(ProbeKey(created_ms=clock.wall_ms(), object_id=randomness.uuid()))
    body = key.encode()
    await store.put(key, body)
    copy = str(ProbeKey(created_ms=clock.wall_ms(), object_id=randomness.uuid()))
    try:
        await _check_create_only(store, key)
        if isinstance(store, CloudStore):
            await _check_publishing(store, key, copy)
        if await store.get(key) != body or await store.get_range(key, 1, 4) != body[1:5]:
            raise StoreMisconfigured(f"{store.url} does not return what was put")
        if [info.key async for info in store.list(key)] != [key]:
            raise StoreMisconfigured(f"{store.url} does not list what was put")
    finally:
        with suppress(StoreError):
            await store.delete([key, copy])


async def _check_create_only(store: ObjectStore, key: str) -> None:
    try:
        await store.put(key, b"overwritten")
    except ObjectExists:
        return
    raise StoreMisconfigured(
        f"{store.url} lets a create-only put replace an object",
        hint="use a server that honours If-None-Match on PUT: AWS S3, MinIO, SeaweedFS",
    )


async def _check_publishing(store: CloudStore, key: str, copy: str) -> None:
    """How an upload becomes visible; see cloud_upload.py."""
    await store.copy_if_absent(key, copy)
    try:
        await store.copy_if_absent(key, copy)
    except ObjectExists:
        return
    raise StoreMisconfigured(
        f"{store.url} lets an upload replace an object",
        hint="use a server that honours If-None-Match on CompleteMultipartUpload: AWS S3, MinIO, SeaweedFS",
    )

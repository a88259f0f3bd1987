"""Does this store answer, and does it keep its word? Asked once at start, in one clear line.

Some servers accept ``If-None-Match`` and ignore it. On such a store a zombie's upload could replace a live object, so
create-only puts are tried out rather than believed.
"""

from __future__ import annotations

from contextlib import suppress

from streamhouse.core.clock import Clock
from streamhouse.core.errors import ObjectExists, StoreError, StoreMisconfigured
from streamhouse.core.randomness import Randomness
from streamhouse.objectstore.cloud import CloudStore
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.keys import ProbeKey


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

"""A cloud store over obstore's own memory: the code for S3, GCS and Azure, without a server."""

from __future__ import annotations

from typing import Any, cast

import obstore
from obstore.store import MemoryStore as ObstoreMemory

from streamhouse.core.clock import ManualClock
from streamhouse.core.randomness import SeededRandomness
from streamhouse.objectstore.cloud import Client, CloudStore


def cloud_store(memory: ObstoreMemory, *, prefix: str = "p/", retrying: Any = None) -> CloudStore:
    client = cast(Client, memory)
    return CloudStore(
        client=client,
        retrying=client if retrying is None else retrying,
        url="s3://bucket/p",
        prefix=prefix,
        clock=ManualClock(),
        randomness=SeededRandomness(1),
    )


def paths(memory: ObstoreMemory) -> list[str]:
    """Everything that is stored, under every prefix."""
    return sorted(meta["path"] for page in obstore.list(memory) for meta in page)

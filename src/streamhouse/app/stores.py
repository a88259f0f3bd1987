"""The two stores of a process, opened from its settings and closed in order. Decides nothing about what is in them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamhouse.app.store_binding import bind_object_store
from streamhouse.core.clock import Clock
from streamhouse.core.errors import InvalidSetting
from streamhouse.core.randomness import Randomness
from streamhouse.core.settings import Settings
from streamhouse.core.urls import local_path, scheme_of
from streamhouse.maintenance.metadata_progress import check_object_store
from streamhouse.metadata.contract import MetadataStore
from streamhouse.metadata.metering import MetadataMeter, metered
from streamhouse.metadata.opening import open_metadata
from streamhouse.objectstore.metering import Meter, MeteredStore
from streamhouse.objectstore.opening import StoreOptions, open_store
from streamhouse.objectstore.probe import wait_for_store
from streamhouse.objectstore.retries import RetryingStore, RetryPolicy

_REMOTE: Final = frozenset({"s3", "gs", "az"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    metadata: MetadataStore
    objects: RetryingStore
    meter: Meter
    """Counts every request that reaches the object store, retries included."""
    metadata_meter: MetadataMeter


@asynccontextmanager
async def open_stores(settings: Settings, *, clock: Clock, randomness: Randomness) -> AsyncIterator[Stores]:
    """Metadata closes last: it is what a flush under way still needs."""
    _make_local_directories(settings)
    async with AsyncExitStack() as stack:
        metadata_meter = MetadataMeter()
        opened = await stack.enter_async_context(
            open_metadata(settings.metadata.url, clock=clock, randomness=randomness)
        )
        metadata = metered(opened, metadata_meter)
        bare = await open_store(
            settings.store.url, clock=clock, randomness=randomness, options=_store_options(settings)
        )
        stack.push_async_callback(bare.close)
        meter = Meter()
        objects = RetryingStore(
            MeteredStore(bare, meter=meter, clock=clock),
            clock=clock,
            randomness=randomness,
            policy=RetryPolicy(
                deadline_ms=settings.store.retry_deadline_ms, attempt_timeout_ms=settings.store.request_timeout_ms
            ),
        )
        if scheme_of(settings.store.url) in _REMOTE:
            # Wrong credentials or a server without create-only puts show here, before anything is written elsewhere.
            await wait_for_store(
                bare,
                clock=clock,
                randomness=randomness,
                attempt_timeout_s=settings.store.request_timeout_ms / 1000,
            )
        await bind_object_store(metadata, objects, randomness=randomness)
        if scheme_of(settings.metadata.url) == "sqlite":
            await check_object_store(metadata, objects)
        yield Stores(metadata=metadata, objects=objects, meter=meter, metadata_meter=metadata_meter)


def _store_options(settings: Settings) -> StoreOptions:
    store = settings.store
    return StoreOptions(
        endpoint_url=store.endpoint_url,
        region=store.region,
        path_style=store.path_style,
        access_key_id=store.access_key_id,
        secret_access_key=store.secret_access_key,
        direct_io=store.direct_io,
    )


def _make_local_directories(settings: Settings) -> None:
    wanted = {settings.data_dir} if settings.single_node else set()
    if scheme_of(settings.metadata.url) == "sqlite":
        wanted.add(Path(local_path(settings.metadata.url)).parent)
    for directory in wanted:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidSetting(
                f"cannot make the directory {directory}: {error.strerror}", hint="choose another with --data-dir"
            ) from error

"""From settings to where pipelines run: the options by which Spark finds the stores, and the checkpoints' directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from streamhouse.core.settings import Settings
from streamhouse.spark.address import StoreAddress, resolve_address


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where pipelines run, and on what."""

    address_options: Mapping[str, str] = field(repr=False)
    checkpoints: str

    @property
    def address(self) -> StoreAddress:
        return resolve_address(self.address_options)


def place_of(settings: Settings, checkpoints: str | None = None) -> Place:
    """Checkpoints lie beside the data unless told otherwise; on a cluster they belong on a mount that all share."""
    store = settings.store
    options = {
        "metadataUrl": settings.metadata.url,
        "storeUrl": store.url,
        "storeEndpointUrl": store.endpoint_url,
        "storeRegion": store.region,
        "storePathStyle": None if store.path_style is None else str(store.path_style).lower(),
        "storeAccessKeyId": store.access_key_id,
        "storeSecretAccessKey": store.secret_access_key,
        "storeRequestTimeout": f"{store.request_timeout_ms}ms",
        "storeRetryDeadline": f"{store.retry_deadline_ms}ms",
    }
    root = checkpoints or str(Path(settings.data_dir).absolute() / "checkpoints")
    if "://" not in root and not root.startswith("file:"):
        root = str(Path(root).absolute())
    return Place(address_options={name: value for name, value in options.items() if value}, checkpoints=root)

"""Which StreamHouse a Spark job speaks of: its metadata store and its object store, found once, on the driver.

The options are those settings of the command line that say where things are, under names that read well in Spark code;
config file and STREAMHOUSE_* variables of the driver count too. What is found travels with the plan, so that executors
need neither. Opens nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from streamhouse.core.errors import InvalidSetting
from streamhouse.core.settings import Settings, load_settings
from streamhouse.core.urls import local_path, scheme_of
from streamhouse.objectstore.opening import StoreOptions

_SETTINGS: Final[Mapping[str, str]] = {
    "dataDir": "data_dir",
    "metadataUrl": "metadata.url",
    "storeUrl": "store.url",
    "storeEndpointUrl": "store.endpoint_url",
    "storeRegion": "store.region",
    "storePathStyle": "store.path_style",
    "storeAccessKeyId": "store.access_key_id",
    "storeSecretAccessKey": "store.secret_access_key",
    "storeRequestTimeout": "store.request_timeout",
    "storeRetryDeadline": "store.retry_deadline",
}
_CONFIG: Final = "config"
ADDRESS_OPTIONS: Final = (*_SETTINGS, _CONFIG)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAddress:
    metadata_url: str = field(repr=False)  # may hold a password
    store_url: str
    store: StoreOptions
    request_timeout_ms: int
    retry_deadline_ms: int


def plain_name(option: str) -> str:
    """``metadataUrl``, ``metadata.url`` and ``METADATA_URL`` are one option: Spark itself ignores case."""
    return option.lower().replace(".", "").replace("_", "").replace("-", "")


def is_address_option(option: str) -> bool:
    return plain_name(option) in _BY_PLAIN_NAME


def resolve_address(
    options: Mapping[str, str], *, environ: Mapping[str, str] | None = None, working_dir: Path | None = None
) -> StoreAddress:
    """Options count before environment, file and defaults, as everywhere. A local directory must exist: if a mistyped
    path were created, the error would be "no such topic". Raises ConfigError.
    """
    given = {
        _BY_PLAIN_NAME[plain]: value for name, value in options.items() if (plain := plain_name(name)) in _BY_PLAIN_NAME
    }
    config = given.pop(_CONFIG, None)
    settings = load_settings(
        flags={_SETTINGS[name]: value for name, value in given.items()},
        config_path=Path(config) if config is not None else None,
        environ=os.environ if environ is None else environ,
        working_dir=working_dir,
    ).settings
    _check_there(settings)
    store = settings.store
    return StoreAddress(
        metadata_url=settings.metadata.url,
        store_url=store.url,
        store=StoreOptions(
            endpoint_url=store.endpoint_url,
            region=store.region,
            path_style=store.path_style,
            access_key_id=store.access_key_id,
            secret_access_key=store.secret_access_key,
            create=False,
        ),
        request_timeout_ms=store.request_timeout_ms,
        retry_deadline_ms=store.retry_deadline_ms,
    )


def _check_there(settings: Settings) -> None:
    hint = "start one with `streamhouse dev`, or say where it is: option dataDir, or metadataUrl and storeUrl"
    if scheme_of(settings.metadata.url) == "sqlite":
        database = Path(local_path(settings.metadata.url))
        if not database.exists():
            raise InvalidSetting(f"there is no StreamHouse in {database.parent}: {database.name} is missing", hint=hint)
    if scheme_of(settings.store.url) == "file":
        objects = Path(local_path(settings.store.url))
        if not objects.is_dir():
            raise InvalidSetting(f"there are no objects of a StreamHouse in {objects}", hint=hint)
    if scheme_of(settings.store.url) == "memory":
        raise InvalidSetting("Spark cannot read objects from another process's memory", hint="set storeUrl")


_BY_PLAIN_NAME: Final[Mapping[str, str]] = {plain_name(name): name for name in ADDRESS_OPTIONS}

"""What tests of the sink stand on: a StreamHouse in this process, and everything that is in one of its topics."""

from __future__ import annotations

from pathlib import Path

from streamhouse.app.platform import StreamHouse
from streamhouse.spark.address import StoreAddress, resolve_address
from streamhouse.wire.records import Record


def address_of(api: StreamHouse) -> StoreAddress:
    return resolve_address(options_of(api), environ={}, working_dir=Path("/"))


def options_of(api: StreamHouse) -> dict[str, str]:
    """How Spark is told where it is."""
    settings = api.settings
    if settings.single_node:
        return {"dataDir": str(settings.data_dir)}
    store = settings.store
    options = {
        "metadataUrl": settings.metadata.url,
        "storeUrl": store.url,
        "storeEndpointUrl": store.endpoint_url,
        "storeRegion": store.region,
        "storeAccessKeyId": store.access_key_id,
        "storeSecretAccessKey": store.secret_access_key,
    }
    return {name: str(value) for name, value in options.items() if value}


async def everything(api: StreamHouse, topic: str) -> dict[int, list[Record]]:
    """Return every record from offset 0 on, by partition. Offsets must be dense."""
    found: dict[int, list[Record]] = {}
    for partition in range((await api.topic(topic)).partition_count):
        records: list[Record] = []
        while more := await api.read(topic, partition, len(records)):
            records += more
        assert [record.offset for record in records] == list(range(len(records)))
        found[partition] = records
    return found


async def values_of(api: StreamHouse, topic: str) -> list[str]:
    found = await everything(api, topic)
    return sorted((record.value or b"").decode() for records in found.values() for record in records)

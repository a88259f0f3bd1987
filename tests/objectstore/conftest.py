"""The stores under test: a directory, memory, a real S3 server, and memory under all wrappers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streamhouse.core.clock import SystemClock
from streamhouse.core.randomness import SystemRandomness
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.faults import FaultyStore, ScriptedFaults
from streamhouse.objectstore.memory import MemoryStore
from streamhouse.objectstore.metering import Meter, MeteredStore
from streamhouse.objectstore.opening import StoreOptions, open_store
from streamhouse.objectstore.retries import RetryingStore
from streamhouse.testing.services import S3Service

CLOCK = SystemClock()
RANDOMNESS = SystemRandomness()


@pytest.fixture(scope="session")
def shared_bucket(s3_service: S3Service) -> str:
    """One bucket for all; each test has a prefix of its own in it."""
    return s3_service.create_bucket()


@pytest.fixture
def s3_options(s3_service: S3Service) -> StoreOptions:
    return StoreOptions(
        endpoint_url=s3_service.endpoint_url,
        region=s3_service.region,
        access_key_id=s3_service.access_key,
        secret_access_key=s3_service.secret_key,
    )


@pytest.fixture
def s3_url(shared_bucket: str) -> str:
    return f"s3://{shared_bucket}/{RANDOMNESS.uuid()}"


@pytest.fixture
async def s3_store(s3_url: str, s3_options: StoreOptions) -> AsyncIterator[ObjectStore]:
    async with await open_store(s3_url, clock=CLOCK, randomness=RANDOMNESS, options=s3_options) as store:
        yield store


def wrap(store: ObjectStore) -> ObjectStore:
    """All wrappers, in the order a process would put them."""
    faulty = FaultyStore(store, plan=ScriptedFaults([]), randomness=RANDOMNESS)
    metered = MeteredStore(faulty, meter=Meter(), clock=CLOCK)
    return RetryingStore(metered, clock=CLOCK, randomness=RANDOMNESS)


@pytest.fixture(params=["local", "memory", "wrapped", "s3"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    if request.param in ("s3", "local"):
        url, options = f"file://{tmp_path}/objects", None
        if request.param == "s3":
            url, options = request.getfixturevalue("s3_url"), request.getfixturevalue("s3_options")
        async with await open_store(url, clock=CLOCK, randomness=RANDOMNESS, options=options) as opened:
            yield opened
    else:
        memory = MemoryStore(clock=CLOCK)
        yield wrap(memory) if request.param == "wrapped" else memory

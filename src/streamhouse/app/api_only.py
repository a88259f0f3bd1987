"""A process without an agent: a broker that leads nothing, and the front ends that clients find the agents through.

Every agent of the cluster leads partitions; this process only answers where they are (Metadata, FindCoordinator) and
takes admin requests. Requests for a leader are answered with NOT_LEADER_OR_FOLLOWER and the leader's address.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from streamhouse.app.broker_parts import broker_without_agent
from streamhouse.app.front_ends import make_kafka
from streamhouse.app.stores import Stores
from streamhouse.broker.broker import Broker
from streamhouse.core.clock import Clock
from streamhouse.core.randomness import Randomness
from streamhouse.core.settings import Settings
from streamhouse.gateway.front_end import FrontEnd


@asynccontextmanager
async def open_api_only(
    settings: Settings, stores: Stores, *, clock: Clock, randomness: Randomness
) -> AsyncIterator[tuple[Broker, FrontEnd | None]]:
    async with AsyncExitStack() as parts:
        broker = broker_without_agent(settings, stores, clock=clock, randomness=randomness, parts=parts)
        kafka = make_kafka(settings, broker) if settings.kafka.enabled else None
        if kafka is not None:
            await kafka.bind()
            parts.push_async_callback(kafka.close)
            parts.push_async_callback(kafka.drain)
        await broker.view.start(None)
        broker.groups.start()
        if kafka is not None:
            await kafka.open()
        yield broker, kafka

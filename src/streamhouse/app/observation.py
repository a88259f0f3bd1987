"""How a process is observed: its health, its metrics, and the admin port that serves both.

begin      before anything else: the admin port opens and says "it starts"
opened     the stores are open
serves     clients are served
stops      before the parts stop; the admin port says so, and closes last
"""

from __future__ import annotations

from contextlib import AsyncExitStack

from streamhouse.app.agent import Agent
from streamhouse.app.costs_page import costs_page
from streamhouse.app.front_ends import make_admin, registered_http
from streamhouse.app.health import ProcessHealth
from streamhouse.app.metrics import of_agent, of_broker, of_process, of_stores
from streamhouse.app.stores import Stores
from streamhouse.broker.broker import Broker
from streamhouse.core.clock import Clock
from streamhouse.core.metrics import Metrics
from streamhouse.core.settings import Settings
from streamhouse.gateway.admin.server import AdminServer
from streamhouse.gateway.front_end import FrontEnd


class Observation:
    def __init__(self, settings: Settings, *, clock: Clock) -> None:
        self.health = ProcessHealth(clock=clock)
        self.metrics = Metrics()
        self.admin: AdminServer | None = None
        """None unless it was asked for."""
        self._settings = settings
        self._clock = clock
        self._started_boot_ms = clock.boot_ms()
        self._stores: Stores | None = None
        self.metrics.add(lambda: of_process(self.health.known))

    @property
    def http_address(self) -> str | None:
        """The address that an agent registers; None if there is none that others reach."""
        return None if self.admin is None else registered_http(self._settings, self.admin)

    async def begin(self, parts: AsyncExitStack) -> None:
        """Raises ConfigError if an address cannot be taken. ``parts`` closes the port."""
        if not self._settings.admin.enabled:
            return
        self.admin = make_admin(
            self._settings,
            clock=self._clock,
            health=self.health.report,
            metrics=self.metrics.text,
            costs=self._costs,
        )
        parts.push_async_callback(self.admin.close)
        await self.admin.bind()
        await self.admin.open()

    def opened(self, stores: Stores) -> None:
        self._stores = stores
        self.health.opened(stores)
        self.metrics.add(lambda: of_stores(stores, max_topics=self._settings.admin.metric_topics))

    def serves(self, broker: Broker, kafka: FrontEnd | None, agent: Agent | None, parts: AsyncExitStack) -> None:
        self.metrics.add(lambda: of_broker(broker, kafka))
        if agent is not None:
            self.metrics.add(lambda: of_agent(agent))
        self.health.serves(agent)
        parts.push_async_callback(self.health.stops)

    def _costs(self) -> dict[str, object] | None:
        if self._stores is None:
            return None
        return costs_page(self._stores.meter, up_s=(self._clock.boot_ms() - self._started_boot_ms) / 1000)

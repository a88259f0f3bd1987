"""The HTTP port of a compactor: that of an agent, with JSON beside Prometheus' text.

/health               who this is and whether it works: status, id, host, port, started_at_ms
/metrics              the metrics in JSON, and what the requests to the object store cost so far
/metrics/prometheus   the same metrics in Prometheus' text format
/costs                its requests to the object store by topic, as agents have it
/livez, /readyz       as agents have them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from streamhouse.app.health import ProcessHealth
from streamhouse.core.clock import Clock
from streamhouse.core.metrics import Metrics
from streamhouse.core.settings import Settings
from streamhouse.gateway.admin.health import HealthReport, Readiness
from streamhouse.gateway.admin.http import Response, as_json
from streamhouse.gateway.admin.server import AdminLimits, AdminServer
from streamhouse.objectstore.metering import MeterReading

_STATUS: Final = {Readiness.READY: "ok", Readiness.DEGRADED: "degraded", Readiness.NOT_READY: "unavailable"}


class CompactorHealth(ProcessHealth):
    """The health of a process that has loops and no agent."""

    def __init__(self, name: str, *, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._process_name = name

    def tell(self, where: str, error: Exception | None) -> None:
        """A loop has this error; None when it works again."""
        self._problems.report(where, error)

    def _name(self) -> str:
        return self._process_name


class CompactorHttp(AdminServer):
    def __init__(
        self,
        settings: Settings,
        *,
        compactor_id: str,
        clock: Clock,
        health: CompactorHealth,
        metrics: Metrics,
        billing: Callable[[], MeterReading | None],
        costs: Callable[[], Mapping[str, object] | None],
    ) -> None:
        """``billing``, ``costs``: the requests of this process to the object store, the latter by topic; None before
        the store is open."""
        admin = settings.admin
        super().__init__(
            listen=admin.listen,
            limits=AdminLimits(
                max_connections=admin.max_connections,
                max_request_bytes=admin.max_request_bytes,
                request_timeout_s=admin.request_timeout_ms / 1000,
            ),
            clock=clock,
            health=health.report,
            metrics=metrics.text,
            costs=costs,
        )
        self._compactor_id = compactor_id
        self._registry = metrics
        self._billing = billing
        self._started_at_ms = clock.wall_ms()
        self._routes = {
            "/health": self._say_health,
            "/metrics": self._json_metrics,
            "/metrics/prometheus": self._scrape,
            "/costs": self._say_costs,
            "/livez": self._livez,
            "/readyz": self._readyz,
        }

    async def _say_health(self) -> Response:
        report = await self._health()
        return as_json(HTTPStatus.OK if report.ready else HTTPStatus.SERVICE_UNAVAILABLE, self._identity(report))

    def _identity(self, report: HealthReport) -> dict[str, object]:
        first = self._listen[0]
        return {
            "status": _STATUS[report.state],
            "id": self._compactor_id,
            "host": first.host,
            "port": first.port,
            "started_at_ms": self._started_at_ms,
        }

    async def _json_metrics(self) -> Response:
        reading = self._billing()
        billing = None if reading is None else {**reading.as_json(), "request_cost_usd": reading.request_cost_usd}
        document = {
            "id": self._compactor_id,
            "started_at_ms": self._started_at_ms,
            "metrics": metrics_document(self._registry),
            "billing": billing,
        }
        return as_json(HTTPStatus.OK, document)


def metrics_document(metrics: Metrics) -> dict[str, Any]:
    """The value of each metric by its name; of one with labels, a list with a value for each. Histograms have their
    count and their sum, without the buckets."""
    found: dict[str, Any] = {}
    for family in metrics.collect():
        for sample in family.samples:
            if sample.name.endswith("_bucket"):
                continue
            if sample.labels:
                found.setdefault(sample.name, []).append({"labels": sample.labels, "value": sample.value})
            else:
                found[sample.name] = sample.value
    return found

"""The settings of the admin port. Declared like those in declared.py, which has all sections."""

from __future__ import annotations

from dataclasses import dataclass

from streamhouse.core.settings.declared_kafka import is_loopback
from streamhouse.core.settings.kinds import Address
from streamhouse.core.settings.schema import addresses, boolean, duration, number, optional_boolean, size


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings:
    """The admin port: health and metrics over HTTP."""

    enabled: bool | None = optional_boolean(
        doc="Serve `/livez`, `/readyz`, `/metrics` and `/costs`. Unset: yes in `streamhouse dev`, `agent` and "
        "`server`, no when opened from Python.",
        why="a program that uses the Python API did not ask for a network port",
    )
    listen: tuple[Address, ...] = addresses(
        "127.0.0.1:8080",
        ports_from=0,
        doc="Where it listens. Port 0 takes any free one. Hosts other than this machine's loopback need "
        "admin.allow_remote. Several agents on one machine need a port each.",
        why="the usual port of an HTTP service, reachable from this machine alone",
    )
    allow_remote: bool = boolean(
        False,
        doc="Allow admin.listen to name an address that other machines reach, as Prometheus and Kubernetes need it.",
        why="there is no authentication yet; the metrics name topics and consumer groups",
    )
    max_connections: int = number(
        64,
        at_least=1,
        at_most=10_000,
        doc="Connections at one time; a further one is answered with 503.",
        why="a few scrapers and probes, each for a moment",
    )
    max_request_bytes: int = size(
        "16KiB",
        at_least="1KiB",
        at_most="1MiB",
        doc="The largest request: its first line and its headers.",
        why="twice what common HTTP servers take",
    )
    request_timeout_ms: int = duration(
        "10s",
        at_least="100ms",
        at_most="10m",
        doc="How long a client may take to send its request, and to take the answer.",
        why="Prometheus gives up after ten seconds",
    )

    metric_topics: int = number(
        200,
        at_least=0,
        at_most=10_000,
        doc="How many topics have metrics of their own for their requests to the object store and the cost of these: "
        'the first that made any. Further ones are together in `topic="(other)"`; `streamhouse cost --by topic` has '
        "all.",
        why="about a thousand series in a process, which Prometheus and a scrape take without notice",
    )

    @property
    def remote_hosts(self) -> list[str]:
        """Hosts of ``listen`` that other machines may reach."""
        return [address.host for address in self.listen if not is_loopback(address.host)]

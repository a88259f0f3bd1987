"""Asks a process for its metrics, as Prometheus' text. Agents and compactors answer under different paths."""

from __future__ import annotations

import http.client
from typing import Final

from streamhouse.core.limits import MIB

_MAX_BODY_BYTES: Final = 16 * MIB


class NoMetricsPage(Exception):
    """A server answers, but not as a process of ours does."""


def get_metrics_page(host: str, port: int, *, timeout_s: float) -> str:
    """An agent's /metrics is the text. That of a compactor is JSON, and has the text beside it.

    Raises NoMetricsPage, OSError, http.client.HTTPException, ValueError.
    """
    for path in ("/metrics", "/metrics/prometheus"):
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read(_MAX_BODY_BYTES)
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise NoMetricsPage(f"{path} answers {response.status}")
        if not (response.getheader("Content-Type") or "").startswith("application/json"):
            return body.decode()
    raise NoMetricsPage("it answers, and not as StreamHouse does")

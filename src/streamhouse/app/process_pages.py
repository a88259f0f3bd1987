"""Gets the pages of a process's HTTP port. Agents and compactors answer for their metrics under different paths."""

from __future__ import annotations

import http.client
from typing import Final, NamedTuple

from streamhouse.core.limits import MIB

_MAX_BODY_BYTES: Final = 16 * MIB


class NoSuchPage(Exception):
    """A server answers, but not as a process of ours does."""


class Page(NamedTuple):
    status: int
    is_json: bool
    body: bytes


def get_page(host: str, port: int, path: str, *, timeout_s: float) -> Page:
    """Whatever answers. Raises OSError, http.client.HTTPException."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        is_json = (response.getheader("Content-Type") or "").startswith("application/json")
        return Page(response.status, is_json, response.read(_MAX_BODY_BYTES))
    finally:
        connection.close()


def get_good_page(host: str, port: int, path: str, *, timeout_s: float) -> Page:
    """Raises NoSuchPage for any status but 200, and what ``get_page`` raises."""
    page = get_page(host, port, path, timeout_s=timeout_s)
    if page.status != http.client.OK:
        raise NoSuchPage(f"{path} answers {page.status}")
    return page


def get_metrics_page(host: str, port: int, *, timeout_s: float) -> str:
    """An agent's /metrics is Prometheus' text. That of a compactor is JSON, and has the text beside it.

    Raises NoSuchPage, OSError, http.client.HTTPException, ValueError.
    """
    for path in ("/metrics", "/metrics/prometheus"):
        page = get_good_page(host, port, path, timeout_s=timeout_s)
        if not page.is_json:
            return page.body.decode()
    raise NoSuchPage("it answers, and not as StreamHouse does")

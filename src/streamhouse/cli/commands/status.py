"""`streamhouse status`: whether a process is ready, what is wrong with it, and its main figures.

Reads `/readyz` and the metrics of the process's admin port: of an agent or of a compactor. Exit code 0 when it is
ready, 10 when it answers and is not ready, 5 when nothing answers.
"""

from __future__ import annotations

import http.client
import json
from typing import Annotated, Any, Final

import typer
from prometheus_client.parser import text_string_to_metric_families

from streamhouse.app.process_pages import NoSuchPage, Page, get_metrics_page, get_page
from streamhouse.cli.conventions import emit, note
from streamhouse.cli.exit_codes import ExitCode
from streamhouse.cli.output import Output, OutputOption, show_json, show_table
from streamhouse.core.errors import InvalidSetting
from streamhouse.core.settings import load_settings
from streamhouse.core.units import format_size

_TIMEOUT_S: Final = 10.0

_FIGURES: Final = {
    "streamhouse_leases": "leases held",
    "streamhouse_wanted_leases": "leases wanted",
    "streamhouse_live_agents": "live agents",
    "streamhouse_groups": "consumer groups",
    "streamhouse_kafka_connections": "Kafka connections",
    "streamhouse_produced_records_total": "records written",
    "streamhouse_fetched_records_total": "records read",
    "streamhouse_refused_batches_total": "batches refused",
    "streamhouse_write_buffer_bytes": "write buffer",
    "streamhouse_wal_disk_bytes": "write-ahead log on disk",
    "streamhouse_flushes_under_way": "flushes under way",
    "streamhouse_flush_puts_total": "objects put by flushes",
    "streamhouse_flushes_held_back_total": "flushes held back by the PUT budget",
    "streamhouse_object_store_requests_usd_total": "estimated cost of requests in USD",
    "streamhouse_compactor_targets": "partitions looked after",
    "streamhouse_compactor_running_tasks": "compactions under way",
    "streamhouse_compactor_lag_entries": "entries due for compaction",
    "streamhouse_damaged_ranges": "damaged ranges",
    "streamhouse_given_up_batches_total": "batches given up",
    "streamhouse_stranded_batches_total": "batches stranded",
}
"""The metrics that are shown, summed over their labels."""


class _Silent(Exception):
    """No process answers, or its answer is not one of an admin port."""


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(
    address: Annotated[
        str | None,
        typer.Option("--address", help="HOST:PORT of the admin port. Without it: admin.listen of the settings."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show whether a process is ready, what is wrong with it and what to do, and its main figures.

    Exit code 0: it is ready, perhaps degraded. 10: it answers and is not ready. 5: nothing answers.
    """
    host, port = _host_and_port(address)
    try:
        ready = get_page(host, port, "/readyz", timeout_s=_TIMEOUT_S)
        health = _health(ready)
        figures = _figures(get_metrics_page(host, port, timeout_s=_TIMEOUT_S))
    except (_Silent, NoSuchPage, OSError, http.client.HTTPException, ValueError) as error:
        problem = str(error) or type(error).__name__
        if output is Output.JSON:
            show_json({"address": f"{host}:{port}", "state": "no answer", "problem": problem})
        note(f"error: nothing answers at {host}:{port} as an admin port does: {problem}")
        note("see that the process runs, and which address it said for its health; --address names another one")
        raise typer.Exit(ExitCode.UNAVAILABLE) from None
    if output is Output.JSON:
        show_json({"address": f"{host}:{port}", **health, "figures": figures})
    else:
        _show(health, figures)
    if ready.status != http.client.OK:
        raise typer.Exit(ExitCode.NOT_READY)


def _host_and_port(address: str | None) -> tuple[str, int]:
    if address is None:
        first = load_settings().settings.admin.listen[0]
        host, port = first.host, str(first.port)
    else:
        host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise InvalidSetting(
            f"{address or f'admin.listen = {host}:{port}'} is no address to ask",
            hint="pass --address HOST:PORT, as the process said it when it started",
        )
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), int(port)


def _health(answer: Page) -> dict[str, Any]:
    health = json.loads(answer.body)
    if not isinstance(health, dict) or not {"state", "process", "problems"} <= health.keys():
        raise _Silent(f"/readyz answers {answer.status}, and not as StreamHouse does")
    return health


def _figures(page: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0) + sample.value
    return {name: sums[name] for name in _FIGURES if name in sums}


def _show(health: dict[str, Any], figures: dict[str, float]) -> None:
    emit(f"{health['process']}: {health['state']}")
    for each in health["problems"]:
        emit(f"  {each['what']}, since {each['since']}: {each['problem']}")
        emit(f"    what to do: {each['what_to_do']}")
    show_table(["figure", "value"], [[_FIGURES[name], _value(name, value)] for name, value in figures.items()])


def _value(name: str, value: float) -> str:
    return format_size(int(value)) if name.endswith("_bytes") else f"{value:,.0f}"

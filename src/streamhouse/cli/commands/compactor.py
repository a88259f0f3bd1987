"""`streamhouse compactor`: the maintenance of a cluster as a service of its own, beside agents."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated

import typer

from streamhouse.app.compactor import CompactorStarted, run_compactor, service_options
from streamhouse.cli.conventions import note
from streamhouse.cli.setting_flags import ChosenSettings, takes_settings
from streamhouse.core.settings import LogFormat, Settings
from streamhouse.core.units import format_duration, format_size, parse_duration, parse_size
from streamhouse.core.urls import mask_url
from streamhouse.maintenance.service import ServiceOptions


def register(app: typer.Typer) -> None:
    app.command("compactor")(takes_settings(compactor))


def compactor(
    chosen: ChosenSettings,
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC", help="Look after these topics only, without vacuum; after all if none is named."
        ),
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", metavar="NAME", help="The name of this process; else a fresh one.")
    ] = None,
    parallel: Annotated[int, typer.Option("--parallel", help="Partitions that are compacted at a time, 1 to 16.")] = 2,
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate",
            metavar="SIZE",
            help="What all tasks together read in a second at most; else maintenance.max_rate_bytes.",
        ),
    ] = None,
    discovery_interval: Annotated[
        str, typer.Option("--discovery-interval", metavar="TIME", help="How often new topics are looked for.")
    ] = "30s",
    min_entries: Annotated[
        int | None, typer.Option("--min-entries", help="From this many on, small entries in a row become one object.")
    ] = None,
    max_age: Annotated[
        str | None,
        typer.Option("--max-age", metavar="TIME", help="Fewer become one once the oldest is older than this."),
    ] = None,
) -> None:
    """Run retention, compaction, key compaction and vacuum for the cluster in a process without an agent.

    Several may run at a time, beside agents or without. Ctrl-C or SIGTERM stops it in order.
    """
    settings = chosen.load().settings
    options = service_options(settings, topics or [])
    rules = options.rules
    options = replace(
        options,
        parallel=parallel,
        bytes_per_second=options.bytes_per_second if rate is None else parse_size(rate),
        discovery_interval_ms=parse_duration(discovery_interval),
        rules=replace(
            rules,
            min_entries=rules.min_entries if min_entries is None else min_entries,
            max_age_ms=rules.max_age_ms if max_age is None else parse_duration(max_age),
        ),
    )
    note("streamhouse compactor starts")
    ended = asyncio.run(
        run_compactor(settings, options, compactor_id=id, ready=lambda started: _tell_ready(started, settings, options))
    )
    if settings.log.format is LogFormat.TEXT:  # else the log has said it, in its own format
        how = "its claims and pins are given back" if ended.gave_back else "its claims and pins run out by themselves"
        note(f"stopped: {how if ended.was_ready else 'it was not ready yet'}")


def _tell_ready(started: CompactorStarted, settings: Settings, options: ServiceOptions) -> None:
    count, of = _count(started.partitions, "partition"), _count(started.topics, "topic")
    rate = f"{options.parallel} at a time, at most {format_size(options.bytes_per_second)} a second"
    intervals = [
        f"compaction every {format_duration(options.compaction_interval_ms)}",
        f"retention every {format_duration(options.retention_interval_ms)}",
        f"vacuum every {format_duration(options.vacuum_interval_ms)}"
        if options.vacuums
        else "no vacuum, because topics were chosen",
    ]
    http = ", ".join(f"http://{address}/health" for address in started.addresses)
    note(f"metadata    {mask_url(settings.metadata.url)}")
    note(f"objects     {settings.store.url}")
    note(f"compactor   {started.compactor_id}, looking after {count} of {of}")
    note(f"tasks       {rate}")
    note(f"passes      {', '.join(intervals)}")
    note(f"health      {http or 'not served by this process'}")
    note("ready; Ctrl-C or SIGTERM stops it in order")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"

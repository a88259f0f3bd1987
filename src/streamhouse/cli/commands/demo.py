"""`streamhouse demo`: the demo topics written and read back on the configured stores (S1.19)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from streamhouse.cli.manners import note, progress
from streamhouse.cli.output import Output, OutputOption, show_json, show_table
from streamhouse.cli.setting_flags import ChosenSettings, takes_settings
from streamhouse.core.urls import mask_url

if TYPE_CHECKING:
    from streamhouse.app.demo import DemoRow
    from streamhouse.core.settings import Settings


def register(app: typer.Typer) -> None:
    app.command("demo")(takes_settings(demo))


def demo(chosen: ChosenSettings, output: OutputOption = Output.TABLE) -> None:
    """Create the demo topics, write and read back a segment of every partition, and show what landed where."""
    import asyncio

    settings = chosen.load().settings
    rows, backend = asyncio.run(_run(settings))
    if output is Output.JSON:
        show_json([asdict(row) for row in rows])
        return
    note(f"metadata  {mask_url(settings.metadata.url)}  ({backend})")
    note(f"objects   {settings.store.url}")
    _show(rows)
    note(_next_steps(settings))


async def _run(settings: Settings) -> tuple[list[DemoRow], str]:
    from streamhouse.app.demo import run_demo
    from streamhouse.app.platform import StreamHouse

    with progress("opening the stores") as say:
        async with StreamHouse.open(settings) as sh:
            info = await sh.stores.metadata.cluster_info()
            rows = await run_demo(sh, progress=lambda where: say(f"writing and reading {where}"))
            return rows, info.backend


def _show(rows: Sequence[DemoRow]) -> None:
    show_table(
        ["topic", "partition_id", "leader_agent_id", "ttl_ms", "epoch", "high_watermark"],
        [
            [row.topic, str(row.partition), row.leader, str(row.ttl_ms), str(row.epoch), str(row.high_watermark)]
            for row in rows
        ],
    )
    show_table(
        ["topic", "partition_id", "records read back", "bytes", "object", "last value"],
        [
            [row.topic, str(row.partition), str(row.records_read), str(row.object_bytes), row.object_key, row.sample]
            for row in rows
        ],
    )


def _next_steps(settings: Settings) -> str:
    from streamhouse.core.urls import local_path, scheme_of

    lines = ["", "Every record above was written to an object, committed in the metadata, and read back from there."]
    lines.append("Run it again: the watermarks move on. To look behind it:")
    if scheme_of(settings.metadata.url) == "sqlite":
        path = local_path(settings.metadata.url)
        lines.append(f"  sqlite3 -readonly {path} 'SELECT topic, partition_id, high_watermark FROM partitions'")
    else:
        lines.append("  psql … -c 'SELECT topic, partition_id, high_watermark FROM partitions'")
    lines.append("  streamhouse config show")
    return "\n".join(lines)

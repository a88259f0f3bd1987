"""`streamhouse dev`, `agent` and `server`: the processes of the platform."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from streamhouse.cli.exit_codes import ExitCode
from streamhouse.cli.manners import note
from streamhouse.cli.output import show_table
from streamhouse.cli.setting_flags import ChosenSettings, takes_settings
from streamhouse.core.errors import InvalidSetting
from streamhouse.core.urls import mask_url

if TYPE_CHECKING:
    from streamhouse.app.platform import StreamHouse
    from streamhouse.core.settings import Settings


def register(app: typer.Typer) -> None:
    app.command("dev")(takes_settings(dev))
    app.command("agent")(takes_settings(agent))
    app.command("server")(takes_settings(server))


def dev(
    chosen: ChosenSettings,
    demo: Annotated[bool, typer.Option("--demo", help="Create the demo topics and write to them first.")] = False,
) -> None:
    """Run everything in this process, on SQLite and a local directory unless told otherwise."""
    _run(chosen.load().settings, "dev", demo=demo)


def agent(chosen: ChosenSettings) -> None:
    """Run one agent of a fleet: it takes its share of the partitions and gives them back when it stops."""
    settings = chosen.load().settings
    if not settings.embedded_agent:
        raise InvalidSetting(
            "an agent process without its agent does nothing",
            hint="leave --embedded-agent on, or run `streamhouse server`",
        )
    _run(settings, "agent")


def server(chosen: ChosenSettings) -> None:
    """Run the server; with DISABLE_EMBEDDED_AGENT=1 it leads nothing and leaves that to standalone agents."""
    _run(chosen.load().settings, "server")


def _run(settings: Settings, name: str, *, demo: bool = False) -> None:
    import asyncio

    from streamhouse.app.process import run_until_stopped

    note(f"streamhouse {name} starts")
    ended = asyncio.run(run_until_stopped(settings, ready=lambda sh: _ready(sh, settings, demo=demo)))
    if ended.failure is not None:
        note(f"error: {ended.failure}")
        raise typer.Exit(ExitCode.FAILURE)
    note(f"stopped: {ended.left_behind or 'everything acknowledged is in the log'}")


async def _ready(sh: StreamHouse, settings: Settings, *, demo: bool) -> None:
    _tell(sh, settings)
    if demo:
        from streamhouse.app.demo import load_demo

        loaded = await load_demo(sh)
        columns = ["topic", "partition_id", "high_watermark", "records read back", "last value"]
        rows = [
            [each.topic, each.partition, each.high_watermark, each.records_read, each.last_value] for each in loaded
        ]
        show_table(columns, [[str(cell) for cell in row] for row in rows])
    note(_first_thing(settings))


def _first_thing(settings: Settings) -> str:
    return f"""
ready; Ctrl-C or SIGTERM stops it in order. The Kafka, REST and gRPC ports join next; until then, stop it and try:

  .venv/bin/python - <<'PY'
  import asyncio
  from streamhouse import StreamHouse

  async def main():
      async with StreamHouse.open(data_dir="{settings.data_dir}") as sh:
          for record in (await sh.read("orders", partition=0, offset=0))[:5]:
              print(record.offset, record.value)

  asyncio.run(main())
  PY"""


def _tell(sh: StreamHouse, settings: Settings) -> None:
    note(f"metadata    {mask_url(settings.metadata.url)}")
    note(f"objects     {settings.store.url}")
    note(f"durability  {settings.effective_durability.value}")
    if settings.embedded_agent:
        view = sh.agent.member.describe()
        note(f"agent       {view.agent_id}, leading {len(view.leases)} partitions and slots")
        note(sh.agent.recovery())
    note(
        "ready; Ctrl-C or SIGTERM stops it in order. It has no network port yet: use it from Python, see the quickstart"
    )

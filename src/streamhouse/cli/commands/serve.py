"""`streamhouse dev`, `agent` and `server`: the processes of the platform."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from streamhouse.app.demo import load_demo
from streamhouse.app.platform import StreamHouse
from streamhouse.app.process import run_until_stopped
from streamhouse.cli.conventions import note
from streamhouse.cli.exit_codes import ExitCode
from streamhouse.cli.output import show_table
from streamhouse.cli.setting_flags import ChosenSettings, takes_settings
from streamhouse.core.errors import InvalidSetting
from streamhouse.core.settings import LogFormat, Settings
from streamhouse.core.urls import mask_url


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
    note(f"streamhouse {name} starts")
    settings = _with_ports(settings)
    ended = asyncio.run(run_until_stopped(settings, ready=lambda sh: _ready(sh, settings, demo=demo)))
    tell = note if settings.log.format is LogFormat.TEXT else _say_nothing  # the log has said it, in its own format
    if ended.failure is not None:
        tell(f"error: {ended.failure}")
        raise typer.Exit(ExitCode.FAILURE)
    tell(f"stopped: {ended.left_behind or 'everything acknowledged is in the log'}")


def _say_nothing(text: str) -> None:
    pass


def _with_ports(settings: Settings) -> Settings:
    """A process of the platform serves Kafka clients, and its health and metrics, unless told otherwise. Without an
    agent it tells Kafka clients where the agents are."""
    kafka, admin = settings.kafka, settings.admin
    return replace(
        settings,
        kafka=kafka if kafka.enabled is not None else replace(kafka, enabled=True),
        admin=admin if admin.enabled is not None else replace(admin, enabled=True),
    )


async def _ready(sh: StreamHouse, settings: Settings, *, demo: bool) -> None:
    _tell(sh, settings)
    if demo:
        loaded = await load_demo(sh)
        columns = ["topic", "partition_id", "high_watermark", "records read back", "last value"]
        rows = [
            [each.topic, each.partition, each.high_watermark, each.records_read, each.last_value] for each in loaded
        ]
        show_table(columns, [[str(cell) for cell in row] for row in rows])
    note("ready; Ctrl-C or SIGTERM stops it in order")
    if sh.kafka_addresses:
        note(first_steps(sh.kafka_addresses[0], topic="orders" if demo else "first"))


def first_steps(address: str, *, topic: str) -> str:
    """What to paste into another terminal. A test runs it as it is, so nothing is indented."""
    return f"""
Write and read with kcat:

echo hello | kcat -P -b {address} -t {topic} -p 0
kcat -C -b {address} -t {topic} -p 0 -o -5 -e

or from Python, with confluent-kafka (a topic is made when it is first written to):

{_python()} - <<'PY'
from confluent_kafka import Consumer, Producer

producer = Producer({{"bootstrap.servers": "{address}"}})
producer.produce("greetings", key="k", value="hello from Python")
producer.flush()

consumer = Consumer({{"bootstrap.servers": "{address}", "group.id": "me", "auto.offset.reset": "earliest"}})
consumer.subscribe(["greetings"])
for message in consumer.consume(1, timeout=10):
    print(message.topic(), message.partition(), message.offset(), message.value())
consumer.close()
PY
"""


def _python() -> str:
    """The interpreter at work here, as one would type it in this directory."""
    running, here = Path(sys.executable), Path.cwd()
    return str(running.relative_to(here)) if running.is_relative_to(here) else str(running)


def _tell(sh: StreamHouse, settings: Settings) -> None:
    note(f"metadata    {mask_url(settings.metadata.url)}")
    note(f"objects     {settings.store.url}")
    note(f"durability  {settings.effective_durability.value}")
    if settings.embedded_agent:
        view = sh.agent.member.describe()
        note(f"agent       {view.agent_id}, leading {len(view.leases)} partitions and slots")
    note(f"kafka       {', '.join(sh.kafka_addresses) or 'not served by this process'}")
    health = ", ".join(f"http://{address}/readyz" for address in sh.admin_addresses)
    note(f"health      {health or 'not served by this process'}")
    if settings.embedded_agent:
        note(sh.agent.recovery())

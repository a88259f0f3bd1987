"""`streamhouse chaos`: real clients, real faults, and a checker that shares no code with the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamhouse.chaos.options import Options, parse_faults, parse_pids, parse_settings
from streamhouse.chaos.report.text import as_text
from streamhouse.chaos.run import run_chaos
from streamhouse.cli.conventions import emit, note
from streamhouse.cli.exit_codes import ExitCode
from streamhouse.cli.output import Output, OutputOption, progress, show_json
from streamhouse.core.randomness import SystemRandomness

_RESULTS = Path("chaos-results")


def register(app: typer.Typer) -> None:
    app.command("chaos")(chaos)


def chaos(
    minutes: Annotated[float, typer.Option("--minutes", help="How long faults go on.")] = 2.0,
    agents: Annotated[int | None, typer.Option("--agents", show_default="3", help="How many agents to start.")] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="The seed of faults and load; a random one if not given.")
    ] = None,
    results: Annotated[
        Path, typer.Option("--results", metavar="DIR", help="Where the report goes: text, JSON and HTML.")
    ] = _RESULTS,
    fault_every: Annotated[float, typer.Option("--fault-every", help="Seconds between two faults, on average.")] = 5.0,
    faults: Annotated[
        str,
        typer.Option(
            "--faults", help="Comma-separated: kill, pause, stop, s3, database, disk, clock; or all, or none."
        ),
    ] = "all",
    floor: Annotated[
        float,
        typer.Option(
            "--floor",
            help="Stores are made to fail only while the share of good time (an agent runs, both stores answer) "
            "is above this.",
        ),
    ] = 0.6,
    rate: Annotated[float, typer.Option("--rate", help="Small records a second, all clients together.")] = 300.0,
    unavailable_limit: Annotated[
        float,
        typer.Option("--unavailable-limit", help="Seconds a partition may acknowledge nothing, outages aside."),
    ] = 60.0,
    settle: Annotated[
        float, typer.Option("--settle", help="Seconds that clients and groups get to finish after the faults.")
    ] = 120.0,
    clients: Annotated[
        str | None, typer.Option("--clients", help="librdkafka, aiokafka, java; whatever is installed if not given.")
    ] = None,
    kafka_jars: Annotated[
        Path | None, typer.Option("--kafka-jars", metavar="DIR", help="The folder of Apache Kafka's client jars.")
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option("--bootstrap", metavar="HOST:PORT", help="Test the fleet at this address; do not start one."),
    ] = None,
    pids: Annotated[
        str | None, typer.Option("--pids", help="With --bootstrap: processes of its agents that may be paused.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the agents; may be repeated.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep history, logs and data even when all is well.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let real Kafka clients write and read while agents and stores fail; then check the log and report."""
    options = Options(
        minutes=minutes,
        agents=agents,
        seed=seed if seed is not None else SystemRandomness().uuid().int % 1_000_000,
        results=results,
        fault_every_s=fault_every,
        faults=parse_faults(faults),
        floor=floor,
        rate=rate,
        unavailable_limit_s=unavailable_limit,
        settle_s=settle,
        keep=keep,
        bootstrap=bootstrap,
        pids=parse_pids(pids),
        clients=[name.strip() for name in clients.split(",")] if clients is not None else None,
        kafka_jars=kafka_jars,
        settings=parse_settings(settings or []),
    )
    with progress("chaos starts") as say:
        report = run_chaos(options, say=say, begins=lambda: note(f"seed {options.seed}; report in {results}"))
    if output is Output.JSON:
        show_json(report)
    else:
        emit(as_text(report))
    note(f"report: {results / 'report.html'}")
    if sum(report["anomalies"].values()):
        raise typer.Exit(ExitCode.ANOMALY)
    if report["interrupted"]:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if not report["passed"]:
        raise typer.Exit(ExitCode.FAILURE)

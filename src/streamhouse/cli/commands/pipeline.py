"""`streamhouse pipeline`: define, look at, start and stop SQL pipelines. `pipeline run` is in pipeline_run.py."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamhouse.cli.commands import pipeline_run, pipeline_views
from streamhouse.cli.commands.spark_runner import Checkpoints
from streamhouse.cli.consent import YesOption, consent
from streamhouse.cli.manners import emit, note
from streamhouse.cli.output import Output, OutputOption, show_facts, show_json, show_rows
from streamhouse.cli.setting_flags import ChosenSettings, add_group
from streamhouse.core.errors import InvalidSetting

if TYPE_CHECKING:
    from streamhouse.spark.pipelines.service import Pipelines

Name = Annotated[str, typer.Argument(metavar="NAME", help="The pipeline's name.")]
Names = Annotated[list[str], typer.Argument(metavar="NAME…", help="Names of pipelines.")]


def register(app: typer.Typer) -> None:
    add_group(
        app,
        "pipeline",
        "SQL from topics into topics, tables and PostgreSQL.",
        {
            "create": create,
            "validate": pipeline_run.validate,
            "start": start,
            "stop": stop,
            "list": list_,
            "describe": describe,
            "logs": logs,
            "delete": delete,
            "run": pipeline_run.run,
        },
    )


def create(
    chosen: ChosenSettings,
    name: Name,
    sources: Annotated[
        list[str],
        typer.Option("--from", metavar="[VIEW=]TOPIC", help="A topic, and what the SQL calls it. Repeatable."),
    ],
    sql: Annotated[str | None, typer.Option("--sql", help="The SELECT.")] = None,
    sql_file: Annotated[Path | None, typer.Option("--sql-file", metavar="FILE", help="A file with the SELECT.")] = None,
    schema: Annotated[
        list[str] | None,
        typer.Option(
            "--schema", metavar="[VIEW=]DDL", help="Columns of a topic's JSON values: 'id BIGINT, at TIMESTAMP'."
        ),
    ] = None,
    watermark: Annotated[
        list[str] | None,
        typer.Option("--watermark", metavar="[VIEW=]COLUMN,DELAY", help="How late rows may be: 'at,10 minutes'."),
    ] = None,
    to_topic: Annotated[str | None, typer.Option("--to-topic", metavar="TOPIC", help="Write to a topic.")] = None,
    to_postgres: Annotated[
        str | None,
        typer.Option(
            "--to-postgres", metavar="URL", help="Write to PostgreSQL; ${NAME} is taken from the environment."
        ),
    ] = None,
    table: Annotated[str | None, typer.Option("--table", help="The table in PostgreSQL.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="COLUMNS", help="Upsert by these columns instead of inserting.")
    ] = None,
    order_by: Annotated[
        str | None, typer.Option("--order-by", metavar="COLUMN", help="Of two rows of one key the higher one counts.")
    ] = None,
    to_table: Annotated[
        str | None,
        typer.Option("--to-table", metavar="FORMAT:PATH", help="Write to a parquet, iceberg or delta table."),
    ] = None,
    mode: Annotated[str, typer.Option("--mode", help="append, update or complete.")] = "append",
    trigger: Annotated[
        str | None, typer.Option("--trigger", metavar="TIME", help="Time between batches, or available-now.")
    ] = None,
    starting: Annotated[str, typer.Option("--starting", help="earliest or latest: where it begins.")] = "earliest",
    isolated: Annotated[bool, typer.Option("--isolated", help="In a Spark application of its own.")] = False,
    start_it: Annotated[bool, typer.Option("--start", help="Let it run at once.")] = False,
) -> None:
    """Define a pipeline. It runs once it is started and a runner (`pipeline run`) is there."""
    from streamhouse.metadata.contract import WantedState
    from streamhouse.spark.pipelines.parsing import load_pipeline

    document: dict[str, Any] = {
        "name": name,
        "sources": _sources(sources, schema or [], watermark or [], starting),
        "sql": _sql(sql, sql_file),
        "target": _target(to_topic, to_postgres, table, key, order_by, to_table),
        "output_mode": mode,
        "trigger": trigger,
        "isolated": isolated,
    }
    spec = load_pipeline(document)
    _pipelines(chosen).create(spec, WantedState.RUNNING if start_it else WantedState.STOPPED)
    note(f"created {name}" + ("" if start_it else f"; `streamhouse pipeline start {name}` lets it run"))


def start(
    chosen: ChosenSettings,
    names: Names,
    reset: Annotated[
        bool, typer.Option("--reset", help="Begin anew: forget checkpoint and progress; the target's rows stay.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Let pipelines run; a runner picks them up within a second."""
    from streamhouse.metadata.contract import WantedState

    pipelines = _pipelines(chosen)
    if reset:
        consent([line for name in names for line in pipeline_views.reset_plan(pipelines.get(name))], yes=yes)
    for name in names:
        pipelines.want(name, WantedState.RUNNING, reset=reset)
        note(f"{name} is to run" + (", from the beginning" if reset else ""))
    if not pipelines.has_runner():
        note("no runner is there: start one with `streamhouse pipeline run`")


def stop(chosen: ChosenSettings, names: Names) -> None:
    """Stop pipelines; they go on from there when started again."""
    from streamhouse.metadata.contract import WantedState

    pipelines = _pipelines(chosen)
    for name in names:
        pipelines.want(name, WantedState.STOPPED)
        note(f"{name} is to stop")


def list_(chosen: ChosenSettings, output: OutputOption = Output.TABLE) -> None:
    """List all pipelines: what is wanted of each, and what it does."""
    pipelines = _pipelines(chosen)
    rows = [pipeline_views.summary(stored, pipelines.now_ms()) for stored in pipelines.list()]
    show_rows(["name", "wanted", "state", "batch", "rows_per_second", "lag", "target"], rows, output)


def describe(chosen: ChosenSettings, name: Name, output: OutputOption = Output.TABLE) -> None:
    """Show a pipeline's definition and state; passwords are masked."""
    pipelines = _pipelines(chosen)
    show_facts(pipeline_views.description(pipelines.get(name), pipelines.now_ms()), output)


def logs(
    chosen: ChosenSettings,
    name: Name,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print what happened to a pipeline: starts, stops, failures and their reasons."""
    import threading

    pipelines, seen, waiting = _pipelines(chosen), (0, 0), threading.Event()
    while True:
        events = pipeline_views.events(pipelines.get(name), after=seen)
        documents = [{"at": event.at, "what": event.what} for event in events]
        if output is Output.JSON and not follow:
            show_json(documents)
        else:
            for event, document in zip(events, documents, strict=True):
                emit(json.dumps(document, ensure_ascii=False) if output is Output.JSON else f"{event.at}  {event.what}")
        seen = events[-1].place if events else seen
        if not follow:
            return
        waiting.wait(1)


def delete(
    chosen: ChosenSettings,
    names: Names,
    checkpoints: Checkpoints = None,
    keep_progress: Annotated[
        bool, typer.Option("--keep-progress", help="Leave it in the target; for one that is out of reach.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Delete stopped pipelines, their checkpoints and their progress; the rows in their targets stay."""
    pipelines = pipeline_run.open_pipelines(chosen, checkpoints)
    plan: list[str] = []
    for name in names:
        found = [str(each.path) for each in pipelines.checkpoints(name)]
        plan += pipeline_views.deletion_plan(pipelines.get(name), found, keep_progress=keep_progress)
    consent(plan, yes=yes)
    for name in names:
        pipelines.delete(name, keep_progress=keep_progress)
        note(f"deleted {name}")


def _pipelines(chosen: ChosenSettings) -> Pipelines:
    return pipeline_run.open_pipelines(chosen)


def _sources(sources: list[str], schemas: list[str], watermarks: list[str], starting: str) -> dict[str, Any]:
    import re

    found: dict[str, Any] = {}
    for given in sources:
        view, _, topic = given.rpartition("=")
        found[view or re.sub(r"[^A-Za-z0-9_]", "_", topic)] = {"topic": topic, "starting": starting}
    for flag, key, values in (("--schema", "schema", schemas), ("--watermark", "watermark", watermarks)):
        for given in values:
            view, _, value = given.partition("=")
            if view not in found:
                if len(found) != 1:
                    raise InvalidSetting(
                        f"{flag} {given[:80]!r} does not say which of {', '.join(found)} it is about",
                        hint=f"write {flag} VIEW=…",
                    )
                view, value = next(iter(found)), given
            found[view][key] = value
    return found


def _sql(sql: str | None, file: Path | None) -> str:
    if (sql is None) == (file is None):
        raise InvalidSetting("give the SQL once", hint="--sql 'SELECT …' or --sql-file FILE")
    if file is None:
        return sql or ""
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"cannot read {file}: {error}") from error


def _target(
    topic: str | None, postgres: str | None, table: str | None, key: str | None, order_by: str | None, lake: str | None
) -> dict[str, Any]:
    named = [flag for flag, given in (("topic", topic), ("postgres", postgres), ("table", lake)) if given]
    if len(named) != 1:
        raise InvalidSetting("give one target", hint="--to-topic TOPIC, --to-postgres URL, or --to-table FORMAT:PATH")
    if topic is not None:
        return {"topic": topic}
    if lake is not None:
        format, _, path = lake.partition(":")
        return {"table": {"format": format, "path": path if "://" in path else os.path.abspath(path)}}
    return {"postgres": {"url": postgres, "table": table, "key": key, "order_by": order_by}}

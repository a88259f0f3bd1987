"""`streamhouse table`: topics as Parquet, Iceberg and Delta tables: define them, look at them, keep them up to date."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamhouse.cli.commands import pipeline_views, table_run
from streamhouse.cli.commands.spark_runner import Checkpoints
from streamhouse.cli.consent import YesOption, consent
from streamhouse.cli.manners import note, progress
from streamhouse.cli.output import Output, OutputOption, show_facts, show_rows
from streamhouse.cli.setting_flags import ChosenSettings, add_group
from streamhouse.core.errors import InvalidSetting

if TYPE_CHECKING:
    from streamhouse.spark.tables.catalog import StoredTable
    from streamhouse.spark.tables.leftovers import Vacuumed

Name = Annotated[str, typer.Argument(metavar="NAME", help="The table's name.")]
Names = Annotated[list[str], typer.Argument(metavar="NAME…", help="Names of tables.")]
OfPipelines = Annotated[bool, typer.Option("--of-pipelines", help="The names are of pipelines that write to tables.")]


def register(app: typer.Typer) -> None:
    add_group(
        app,
        "table",
        "Topics as Parquet, Iceberg and Delta tables.",
        {
            "create": create,
            "list": list_,
            "describe": describe,
            "start": start,
            "stop": stop,
            "delete": delete,
            "compact": compact,
            "vacuum": vacuum,
            "run": table_run.run,
        },
    )


def create(
    chosen: ChosenSettings,
    topic: Annotated[str, typer.Option("--topic", help="The topic whose records become rows.")],
    format: Annotated[str, typer.Option("--format", help="parquet, iceberg or delta.")],
    name: Annotated[str | None, typer.Option("--name", help="The table's name; the topic's if not given.")] = None,
    path: Annotated[
        str | None,
        typer.Option("--path", metavar="PATH", help="A directory or s3://…; DATA_DIR/tables/NAME if not given."),
    ] = None,
    schema: Annotated[
        str,
        typer.Option(
            "--schema", metavar="SCHEMA", help="json (inferred), 'ddl:id BIGINT, …', avro:FILE or avro-confluent:FILE."
        ),
    ] = "json",
    partition_by: Annotated[
        str, typer.Option("--partition-by", help="none, day or hour of the record's time.")
    ] = "none",
    dead_letters: Annotated[
        str | None,
        typer.Option(
            "--dead-letters", metavar="TOPIC", help="For records that cannot become rows; '' stops the table at one."
        ),
    ] = None,
    trigger: Annotated[str, typer.Option("--trigger", metavar="TIME", help="Time between commits.")] = "10s",
    catalog: Annotated[
        str, typer.Option("--catalog", metavar="URL", help="Iceberg's SQL catalog; beside the metadata if not given.")
    ] = "",
    start_it: Annotated[bool, typer.Option("--start/--no-start", help="Let it be filled at once.")] = True,
) -> None:
    """Define a table. A runner (`table run`) fills it from offset 0, then keeps it up to date."""
    from streamhouse.core.units import parse_duration
    from streamhouse.metadata.contract import WantedState

    service = table_run.open_tables(chosen)
    from streamhouse.spark.tables.service import storage_of
    from streamhouse.spark.tables.spec import TableSpec, parse_values

    chosen_name = name or topic
    location = path or str(Path(chosen.load().settings.data_dir).absolute() / "tables" / chosen_name)
    spec = TableSpec(
        name=chosen_name,
        topic=topic,
        storage=storage_of(format, location, partition_by, catalog),
        values=parse_values(schema, _read_file),
        dead_letters=f"{topic}.dead-letters" if dead_letters is None else dead_letters,
        trigger_ms=parse_duration(trigger),
    )
    service.create(spec, WantedState.RUNNING if start_it else WantedState.STOPPED)
    note(f"created {chosen_name} in {spec.storage.location}; `streamhouse table run` fills it")


def list_(chosen: ChosenSettings, output: OutputOption = Output.TABLE) -> None:
    """List all tables: what is wanted of each, and what its runner says."""
    service = table_run.open_tables(chosen)
    rows = [_summary(stored, service.now_ms()) for stored in service.list()]
    columns = ["name", "topic", "format", "wanted", "state", "batch", "rows_per_second", "lag", "location"]
    show_rows(columns, rows, output)


def describe(chosen: ChosenSettings, name: Name, output: OutputOption = Output.TABLE) -> None:
    """Show a table's definition, columns, size and how far it has come."""
    service = table_run.open_tables(chosen)
    show_facts({**_summary(service.get(name), service.now_ms()), **service.facts(name)}, output)


def start(
    chosen: ChosenSettings,
    names: Names,
    reset: Annotated[bool, typer.Option("--reset", help="Empty the table and fill it anew from offset 0.")] = False,
    yes: YesOption = False,
) -> None:
    """Let tables be filled; a runner picks them up within a second."""
    from streamhouse.metadata.contract import WantedState

    service = table_run.open_tables(chosen)
    if reset:
        plan: list[str] = []
        for name in names:
            spec = service.get(name).spec
            plan.append(
                f"{name}: goes, when its runner begins anew: every row in {spec.storage.location}, its checkpoint"
            )
            plan.append(f"{name}: stays: the topic {spec.topic}, from which it is filled again, and its dead letters")
        consent(plan, yes=yes)
    for name in names:
        service.want(name, WantedState.RUNNING, reset=reset)
        note(f"{name} is to run" + (", from the beginning" if reset else ""))


def stop(chosen: ChosenSettings, names: Names) -> None:
    """Stop tables; they go on from there when started again."""
    from streamhouse.metadata.contract import WantedState

    service = table_run.open_tables(chosen)
    for name in names:
        service.want(name, WantedState.STOPPED)
        note(f"{name} is to stop")


def delete(
    chosen: ChosenSettings,
    names: Names,
    data: Annotated[bool, typer.Option("--data", help="Its rows too; else they stay where they are.")] = False,
    checkpoints: Checkpoints = None,
    yes: YesOption = False,
) -> None:
    """Delete stopped tables and their checkpoints."""
    service = table_run.open_tables(chosen, checkpoints)
    plan: list[str] = []
    for name in names:
        spec, found = service.get(name).spec, service.checkpoints(name)
        plan.append(f"{name}: goes: its definition")
        plan += [f"{name}: goes: the checkpoint {each.path}" for each in found]
        if not found:
            plan.append(f"{name}: no checkpoints are here; say --checkpoints if its runner was told where")
        plan.append(f"{name}: {'goes' if data else 'stays'}: every row in {spec.storage.location}")
        plan.append(f"{name}: stays: the topic {spec.topic}, and the dead letters in {spec.dead_letters or 'no topic'}")
    consent(plan, yes=yes)
    for name in names:
        service.delete(name, data=data)
        note(f"deleted {name}" + (" and its rows" if data else "; its rows are still there"))


def compact(
    chosen: ChosenSettings,
    names: Names,
    target_size: Annotated[str, typer.Option("--target-size", metavar="SIZE", help="Of a file.")] = "128MiB",
    of_pipelines: OfPipelines = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Put small files together; may run beside the table's runner."""
    from streamhouse.core.units import parse_size

    service, rows = table_run.open_tables(chosen), list[dict[str, Any]]()
    for name in names:
        with progress(f"compacting {name}"):
            done = service.compact(name, target_bytes=parse_size(target_size), of_pipeline=of_pipelines)
        rows.append({"name": name, "files_before": done.files_before, "files_after": done.files_after})
    show_rows(list(rows[0]), rows, output)


def vacuum(
    chosen: ChosenSettings,
    names: Names,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="TIME", help="Leave what was written or replaced since; 1h at least.")
    ] = "7d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    yes: YesOption = False,
    of_pipelines: OfPipelines = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove files that a table no longer refers to; may run beside its runner.

    They are left by attempts that failed, and replaced by compaction. Iceberg's versions that were replaced before the
    given time can no longer be read.
    """
    from streamhouse.core.units import parse_duration

    service, rows = table_run.open_tables(chosen), list[dict[str, Any]]()
    age_ms = parse_duration(older_than)
    for name in names:
        with progress(f"looking through {name}"):
            found = service.vacuum(name, older_than_ms=age_ms, dry_run=True, of_pipeline=of_pipelines)
        if not dry_run and (found.files or found.snapshots):
            consent([f"{name}: {_would_go(found)}, from before {older_than} ago"], yes=yes)
            with progress(f"removing {len(found.files)} files of {name}"):
                found = service.vacuum(name, older_than_ms=age_ms, dry_run=False, of_pipeline=of_pipelines)
        rows.append(
            {
                "name": name,
                "removed": not dry_run,
                "files": len(found.files),
                "size_bytes": found.size_bytes,
                "versions": found.snapshots,
            }
        )
    show_rows(list(rows[0]), rows, output)


def _would_go(found: Vacuumed) -> str:
    versions = f" and {found.snapshots} versions" if found.snapshots else ""
    return f"{len(found.files)} files ({found.size_bytes:,} bytes){versions} are to go"


def _summary(stored: StoredTable, now_ms: int) -> dict[str, Any]:
    from streamhouse.spark.pipelines.reports import read_report

    report, spec = read_report(stored.report), stored.spec
    return {
        "name": stored.name,
        "topic": spec.topic,
        "format": spec.storage.format.value,
        "partition_by": spec.storage.partition_by.value,
        "dead_letters": spec.dead_letters,
        "wanted": stored.wanted.value,
        "state": pipeline_views.state_of(stored, now_ms),
        "batch": report.batch,
        "rows_per_second": round(report.rows_per_second, 1),
        "lag": report.lag,
        "error": report.error,
        "location": spec.storage.location,
    }


def _read_file(name: str) -> str:
    try:
        return Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"cannot read {name}: {error}") from error

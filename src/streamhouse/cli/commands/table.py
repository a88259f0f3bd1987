"""`streamhouse table`: define, run and delete topics as Parquet, Iceberg and Delta tables, compact and vacuum them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from streamhouse.cli.commands.definitions import (
    Checkpoints,
    DefinitionCommands,
    Name,
    Names,
    Start,
    read_text,
    removal_lines,
)
from streamhouse.cli.conventions import YesOption, consent, note
from streamhouse.cli.output import Output, OutputOption, progress, show_rows
from streamhouse.cli.setting_flags import ChosenSettings, add_group
from streamhouse.core.units import parse_duration, parse_size
from streamhouse.spark.definitions.catalog import Stored
from streamhouse.spark.definitions.service import Place
from streamhouse.spark.tables.leftovers import Vacuumed
from streamhouse.spark.tables.service import Tables, storage_of
from streamhouse.spark.tables.spec import TableSpec

OfPipelines = Annotated[bool, typer.Option("--of-pipelines", help="The names are those of pipelines into tables.")]


def register(app: typer.Typer) -> None:
    commands = TableCommands()
    own: dict[str, Callable[..., None]] = {
        "create": commands.create_,
        "delete": commands.delete,
        "compact": commands.compact,
        "vacuum": commands.vacuum,
    }
    add_group(app, "table", "Topics as Parquet, Iceberg and Delta tables.", {**own, **commands.shared()})


class TableCommands(DefinitionCommands[Tables]):
    noun = "table"
    columns = ("topic", "format", "location")

    def make(self, place: Place) -> Tables:
        return Tables(place)

    def own_row(self, stored: Stored[Any]) -> dict[str, Any]:
        spec = stored.spec
        return {
            "topic": spec.topic,
            "format": spec.storage.format.value,
            "partition_by": spec.storage.partition_by.value,
            "dead_letters": spec.dead_letters,
            "location": spec.storage.location,
        }

    def own_facts(self, service: Tables, stored: Stored[Any]) -> dict[str, Any]:
        return service.facts(stored.name)

    def reset_plan(self, stored: Stored[Any]) -> list[str]:
        name, spec = stored.name, stored.spec
        return [
            f"{name}: removes, when its runner starts it again: every row in {spec.storage.location}, its checkpoints",
            f"{name}: keeps: the topic {spec.topic}, from which it is filled again, and its dead letters",
        ]

    def create_(
        self,
        chosen: ChosenSettings,
        name: Name,
        topic: Annotated[str, typer.Option("--from", metavar="TOPIC", help="The topic whose records become rows.")],
        format: Annotated[str, typer.Option("--format", help="parquet, iceberg or delta.")],
        path: Annotated[
            str | None,
            typer.Option("--path", metavar="PATH", help="A directory or s3://…; DATA_DIR/tables/NAME if not given."),
        ] = None,
        schema: Annotated[
            str,
            typer.Option(
                "--schema",
                metavar="SCHEMA",
                help="json (inferred), 'ddl:id BIGINT, …', avro:FILE or avro-confluent:FILE.",
            ),
        ] = "json",
        partition_by: Annotated[
            str, typer.Option("--partition-by", help="none, day or hour of the record's time.")
        ] = "none",
        dead_letters: Annotated[
            str | None,
            typer.Option(
                "--dead-letters",
                metavar="TOPIC",
                help="For records that cannot become rows; '' stops the table at one.",
            ),
        ] = None,
        trigger: Annotated[str, typer.Option("--trigger", metavar="TIME", help="Time between commits.")] = "10s",
        catalog: Annotated[
            str,
            typer.Option("--catalog", metavar="URL", help="Iceberg's SQL catalog; beside the metadata if not given."),
        ] = "",
        start_it: Start = True,
    ) -> None:
        """Define a table. A runner (`table run`) fills it from offset 0, then keeps it up to date."""
        tables = self.open(chosen)
        from streamhouse.spark.tables.values import parse_values

        location = path or str(Path(chosen.load().settings.data_dir).absolute() / "tables" / name)
        spec = TableSpec(
            name=name,
            topic=topic,
            storage=storage_of(format, location, partition_by, catalog),
            values=parse_values(schema, lambda file: read_text(Path(file))),
            dead_letters=f"{topic}.dead-letters" if dead_letters is None else dead_letters,
            trigger_ms=parse_duration(trigger),
        )
        self.create(tables, spec, start=start_it)

    def delete(
        self,
        chosen: ChosenSettings,
        names: Names,
        checkpoints: Checkpoints = None,
        data: Annotated[bool, typer.Option("--data", help="Its rows too; else they stay where they are.")] = False,
        yes: YesOption = False,
    ) -> None:
        """Delete stopped tables and their checkpoints."""
        tables, plan = self.open(chosen, checkpoints), list[str]()
        for name in names:
            spec = tables.get(name).spec
            rows = f"every row in {spec.storage.location}"
            kept = [f"the topic {spec.topic}", f"the dead letters in {spec.dead_letters or 'no topic'}"]
            removed = [rows] if data else []
            plan += removal_lines(name, tables.checkpoints(name), removed, kept if data else [rows, *kept])
        consent(plan, yes=yes)
        for name in names:
            tables.delete(name, data=data)
            note(f"deleted {name}" + (" and its rows" if data else "; its rows are still there"))

    def compact(
        self,
        chosen: ChosenSettings,
        names: Names,
        target_size: Annotated[
            str, typer.Option("--target-size", metavar="SIZE", help="The size of a file.")
        ] = "128MiB",
        of_pipelines: OfPipelines = False,
        output: OutputOption = Output.TABLE,
    ) -> None:
        """Merge small files; the table's runner may go on."""
        service, rows = self.open(chosen), list[dict[str, Any]]()
        for name in names:
            with progress(f"compacting {name}"):
                done = service.compact(name, target_bytes=parse_size(target_size), of_pipeline=of_pipelines)
            rows.append({"name": name, "files_before": done.files_before, "files_after": done.files_after})
        show_rows(list(rows[0]), rows, output)

    def vacuum(
        self,
        chosen: ChosenSettings,
        names: Names,
        older_than: Annotated[
            str, typer.Option("--older-than", metavar="TIME", help="Keep files written or replaced since; 1h at least.")
        ] = "7d",
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
        yes: YesOption = False,
        of_pipelines: OfPipelines = False,
        output: OutputOption = Output.TABLE,
    ) -> None:
        """Remove files that a table does not refer to any more; the table's runner may go on.

        Failed attempts leave such files, and compaction replaces files. Versions of an Iceberg table that were replaced
        before the given time can no longer be read.
        """
        service, rows = self.open(chosen), list[dict[str, Any]]()
        age_ms = parse_duration(older_than)
        for name in names:
            with progress(f"checking {name}"):
                found = service.vacuum(name, older_than_ms=age_ms, dry_run=True, of_pipeline=of_pipelines)
            if not dry_run and (found.files or found.snapshots):
                consent([f"{name}: removes: {_summary(found)} older than {older_than}"], yes=yes)
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


def _summary(found: Vacuumed) -> str:
    versions = f" and {found.snapshots} versions" if found.snapshots else ""
    return f"{len(found.files)} files ({found.size_bytes:,} bytes){versions}"

"""`streamhouse pipeline` and `streamhouse apply`: define, check, run and delete SQL pipelines."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamhouse.cli.commands.definitions import (
    Checkpoints,
    Conf,
    DefinitionCommands,
    Master,
    Name,
    Names,
    Start,
    read_text,
    removal_lines,
    same_command,
    spark_config,
)
from streamhouse.cli.commands.spark_runner import open_application, shows_progress
from streamhouse.cli.conventions import YesOption, consent, note
from streamhouse.cli.exit_codes import ExitCode
from streamhouse.cli.output import Output, OutputOption, progress, show_json, show_table
from streamhouse.cli.setting_flags import ChosenSettings, add_group, takes_settings
from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import InvalidSetting, StreamHouseError
from streamhouse.spark.definitions.catalog import Stored
from streamhouse.spark.definitions.service import Place
from streamhouse.spark.pipelines.isolated import IsolatedRunners
from streamhouse.spark.pipelines.parsing import load_pipeline
from streamhouse.spark.pipelines.service import Pipelines
from streamhouse.spark.pipelines.spec import PipelineSpec, TargetKind

if TYPE_CHECKING:
    from streamhouse.spark.pipelines.yaml_file import WantedPipeline


def register(app: typer.Typer) -> None:
    commands = PipelineCommands()
    own: dict[str, Callable[..., None]] = {
        "create": commands.create_,
        "validate": commands.validate,
        "delete": commands.delete,
    }
    add_group(app, "pipeline", "SQL from topics into topics, tables and PostgreSQL.", {**own, **commands.shared()})
    app.command("apply")(takes_settings(commands.apply))


class PipelineCommands(DefinitionCommands[Pipelines]):
    noun = "pipeline"
    columns = ("target",)

    def make(self, place: Place) -> Pipelines:
        return Pipelines(place)

    def own_row(self, stored: Stored[Any]) -> dict[str, Any]:
        return {"target": str(stored.spec.target)}

    def own_facts(self, service: Pipelines, stored: Stored[Any]) -> dict[str, Any]:
        return {"checkpoint_version": stored.spec.fingerprint(), "definition": stored.spec.masked_document()}

    def reset_plan(self, stored: Stored[Any]) -> list[str]:
        return [
            f"{stored.name}: removes, when its runner starts it again: its progress and its checkpoints",
            f"{stored.name}: keeps: every row in {stored.spec.target}; what is read again is added to them",
        ]

    def create_(
        self,
        chosen: ChosenSettings,
        name: Name,
        sources: Annotated[
            list[str],
            typer.Option("--from", metavar="[VIEW=]TOPIC", help="A topic, and what the SQL calls it. Repeatable."),
        ],
        sql: Annotated[str | None, typer.Option("--sql", help="The SELECT.")] = None,
        sql_file: Annotated[
            Path | None, typer.Option("--sql-file", metavar="FILE", help="A file with the SELECT.")
        ] = None,
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
            str | None,
            typer.Option(
                "--order-by", metavar="COLUMN", help="Of two rows with one key, keep the one with the higher value."
            ),
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
        isolated: Annotated[bool, typer.Option("--isolated", help="Run it in a Spark application of its own.")] = False,
        start_it: Start = True,
    ) -> None:
        """Define a pipeline. A runner (`pipeline run`) runs it."""
        document: dict[str, Any] = {
            "name": name,
            "sources": _sources(sources, schema or [], watermark or [], starting),
            "sql": _sql(sql, sql_file),
            "target": _target(to_topic, to_postgres, table, key, order_by, to_table),
            "output_mode": mode,
            "trigger": trigger,
            "isolated": isolated,
        }
        self.create(self.open(chosen), load_pipeline(document), start=start_it)

    def delete(
        self,
        chosen: ChosenSettings,
        names: Names,
        checkpoints: Checkpoints = None,
        keep_progress: Annotated[
            bool, typer.Option("--keep-progress", help="Leave it in the target; for a target that does not answer.")
        ] = False,
        yes: YesOption = False,
    ) -> None:
        """Delete stopped pipelines, their checkpoints and their progress; the rows in their targets stay."""
        pipelines, plan = self.open(chosen, checkpoints), list[str]()
        for name in names:
            target = pipelines.get(name).spec.target
            keeps = keep_progress or target.kind is TargetKind.TABLE
            kept = [f"every row in {target}", "the topics it reads", *([f"its progress, in {target}"] if keeps else [])]
            plan += removal_lines(name, pipelines.checkpoints(name), [] if keeps else ["its progress"], kept)
        consent(plan, yes=yes)
        for name in names:
            pipelines.delete(name, keep_progress=keep_progress)
            note(f"deleted {name}")

    def validate(
        self,
        chosen: ChosenSettings,
        names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Defined pipelines.")] = None,
        file: Annotated[
            Path | None, typer.Option("--file", "-f", metavar="FILE", help="A file of pipelines instead.")
        ] = None,
        master: Master = "local[*]",
        conf: Conf = None,
        output: OutputOption = Output.TABLE,
    ) -> None:
        """Check pipelines without reading or writing a row: names, types, output mode and target."""
        if bool(names) == (file is not None):
            raise InvalidSetting("nothing to validate is named", hint="give names of pipelines, or --file FILE")
        pipelines = self.open(chosen)
        if file is not None:
            specs = [each.spec for each in _read_file(file)]
        else:
            specs = [pipelines.get(name).spec for name in names or []]
        rows = _validate(pipelines, specs, master, spark_config(conf))
        if output is Output.JSON:
            show_json(rows)
        else:
            columns = ["name", "ok", "stateful", "columns", "problem"]
            show_table(columns, [[str(row[column]) for column in columns] for row in rows])
        if not all(row["ok"] for row in rows):
            raise typer.Exit(ExitCode.USAGE)

    def apply(
        self,
        chosen: ChosenSettings,
        file: Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="A YAML file of pipelines.")],
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
        output: OutputOption = Output.TABLE,
    ) -> None:
        """Create and update pipelines as a file says. The same file again changes nothing; others stay as they are."""
        done = self.open(chosen).apply(_read_file(file), dry_run=dry_run)
        if output is Output.JSON:
            show_json(
                [
                    {
                        "name": each.name,
                        "action": each.action,
                        "wanted": each.wanted.value,
                        "changes": list(each.changes),
                    }
                    for each in done
                ]
            )
        else:
            rows = [[each.name, each.action, each.wanted.value, ", ".join(each.changes)] for each in done]
            show_table(["name", "action", "wanted", "changes"], rows)
        if dry_run:
            note("nothing was changed")

    def isolated(
        self, chosen: ChosenSettings, master: str, checkpoints: str | None, conf: list[str] | None, fast_start: bool
    ) -> IsolatedRunners:
        flags: list[tuple[str, object]] = [("--parent", os.getpid()), ("--master", master)]
        flags += [("--checkpoints", checkpoints), ("--fast-start", fast_start)]
        flags += [("--conf", each) for each in conf or []]
        command = same_command(chosen, "pipeline", "run", flags=flags)
        return IsolatedRunners(command, SystemClock(), tell=note if shows_progress() else None)


def _validate(
    pipelines: Pipelines, specs: Sequence[PipelineSpec], master: str, config: dict[str, str]
) -> list[dict[str, object]]:
    from streamhouse.spark.pipelines.validation import validate

    rows: list[dict[str, object]] = []
    application = open_application(master, name="streamhouse validate", config=config, fast_start=True)
    with progress("trying") as say:
        for spec in specs:
            say(f"trying {spec.name}")
            try:
                found = validate(application.session_for(spec.name), spec, pipelines.place)
                columns = ", ".join(f"{name} {kind}" for name, kind in found.columns)
                row = {"ok": True, "stateful": found.is_stateful, "columns": columns, "problem": ""}
            except StreamHouseError as error:
                row = {"ok": False, "stateful": "", "columns": "", "problem": str(error)}
            rows.append({"name": spec.name, **row})
        application.stop()
    return rows


def _read_file(file: Path) -> list[WantedPipeline]:
    """Raises InvalidSetting, with the line of each problem."""
    from streamhouse.spark.pipelines.yaml_file import read_pipelines

    return read_pipelines(read_text(file), file=str(file))


def _sources(sources: list[str], schemas: list[str], watermarks: list[str], starting: str) -> dict[str, Any]:
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
                        f"{flag} {given[:80]!r} does not say which of {', '.join(found)} it is for",
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
    return read_text(file)


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

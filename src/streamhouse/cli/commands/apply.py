"""`streamhouse apply`: make the pipelines what a file says they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamhouse.cli.commands.pipeline_run import open_pipelines
from streamhouse.cli.manners import note
from streamhouse.cli.output import Output, OutputOption, show_json, show_table
from streamhouse.cli.setting_flags import ChosenSettings, takes_settings
from streamhouse.core.errors import InvalidSetting

if TYPE_CHECKING:
    from streamhouse.spark.pipelines.yaml_file import WantedPipeline


def register(app: typer.Typer) -> None:
    app.command("apply")(takes_settings(apply))


def apply(
    chosen: ChosenSettings,
    file: Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="A YAML file of pipelines.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would change; change nothing.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create and update pipelines as a file says. The same file again changes nothing; what it does not name stays."""
    pipelines = open_pipelines(chosen)
    done = pipelines.apply(read_file(file), dry_run=dry_run)
    if output is Output.JSON:
        show_json(
            [
                {"name": each.name, "action": each.action, "wanted": each.wanted.value, "changes": list(each.changes)}
                for each in done
            ]
        )
    else:
        rows = [[each.name, each.action, each.wanted.value, ", ".join(each.changes)] for each in done]
        show_table(["name", "action", "wanted", "changes"], rows)
    if dry_run:
        note("nothing was changed")


def read_file(file: Path) -> list[WantedPipeline]:
    """Raises InvalidSetting, with the line of each thing that is wrong."""
    from streamhouse.spark.pipelines.yaml_file import read_pipelines

    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"cannot read {file}: {error}") from error
    return read_pipelines(text, file=str(file))

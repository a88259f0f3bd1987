"""`streamhouse demo`: three agents share partitions; one dies and one leaves; shown step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import typer

from streamhouse.app.story import tell_story
from streamhouse.cli.conventions import note
from streamhouse.cli.output import Output, OutputOption, progress, show_json, show_table
from streamhouse.cli.setting_flags import ChosenSettings, takes_settings
from streamhouse.core.clock import SystemClock
from streamhouse.core.randomness import SystemRandomness
from streamhouse.core.settings import Settings
from streamhouse.core.urls import mask_url

_DIRECTORY = "demo"


def register(app: typer.Typer) -> None:
    app.command("demo")(takes_settings(demo))


def demo(chosen: ChosenSettings, output: OutputOption = Output.TABLE) -> None:
    """Run three agents in this process, kill one, stop one, and show which agent leads what and where the data is."""
    settings = _settings(chosen)
    steps = _run(settings, output)
    if output is Output.JSON:
        show_json(steps)
        return
    note("")
    note(f"metadata  {mask_url(settings.metadata.url)}")
    note(f"objects   {settings.store.url}")
    note("Every acknowledged record was read back. Run it again: watermarks and epochs move on.")
    note("Next: `streamhouse dev` runs the platform for you alone; docs/quickstart.md uses it from Python.")


def _settings(chosen: ChosenSettings) -> Settings:
    """A fleet needs leases that expire, so the demo keeps a directory of its own beside a single node's."""
    first = chosen.load().settings
    flags = {key: value for key, value in chosen.flags.items() if value is not None}
    if first.single_node:
        flags["data_dir"] = str(first.data_dir / _DIRECTORY)
        flags["durability"] = "object"
    flags.setdefault("profile", "fast")
    return ChosenSettings(flags=flags, config_path=chosen.config_path).load().settings


def _run(settings: Settings, output: Output) -> list[dict[str, object]]:
    steps: list[dict[str, object]] = []

    def tell(heading: str, columns: Sequence[str], rows: Sequence[Sequence[str | int]]) -> None:
        steps.append({"step": heading, "rows": [dict(zip(columns, row, strict=True)) for row in rows]})
        if output is Output.TABLE:
            note(f"\n{heading}")
            show_table(columns, [[str(cell) for cell in row] for row in rows])

    with progress("three agents are at work"):
        asyncio.run(tell_story(settings, clock=SystemClock(), randomness=SystemRandomness(), tell=tell))
    return steps

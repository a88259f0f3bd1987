"""`streamhouse topic-configs`: the topic configs a topic may have, as a table."""

from __future__ import annotations

import typer

from streamhouse.cli.output import Output, OutputOption, show_json, show_table
from streamhouse.core.topic_config import TOPIC_CONFIGS


def register(app: typer.Typer) -> None:
    app.command("topic-configs")(topic_configs)


def topic_configs(output: OutputOption = Output.TABLE) -> None:
    """List every topic config: type, default, valid values, and whether it has an effect here."""
    keys = TOPIC_CONFIGS.values()
    if output is Output.JSON:
        show_json(
            [
                {
                    "name": key.name,
                    "type": key.type.name,
                    "default": key.default,
                    "valid": key.allowed,
                    "inert": bool(key.inert),
                    "inert_reason": key.inert,
                    "immutable": key.immutable,
                    "synonyms": list(key.synonyms),
                    "documentation": key.doc,
                }
                for key in keys
            ]
        )
        return
    rows = [
        [key.name, key.type.name, key.default, key.allowed, f"no effect: {key.inert}" if key.inert else key.doc]
        for key in keys
    ]
    show_table(["name", "type", "default", "valid", "effect"], rows)

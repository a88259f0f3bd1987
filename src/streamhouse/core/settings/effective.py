"""The settings as they are in force, ready to print: value in canonical spelling, its source, secrets masked."""

from __future__ import annotations

from dataclasses import dataclass

from streamhouse.core.settings.resolve import SCHEMA, Resolution
from streamhouse.core.settings.sources import OriginKind


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSetting:
    """``value`` can go back into a TOML file as it stands, unless it was masked; None is unset."""

    key: str
    value: str | bool | None
    source: str
    chosen: bool  # by a person: flag, environment or file
    doc: str

    @property
    def text(self) -> str:
        if self.value is None:
            return "(unset)"
        return str(self.value).lower() if isinstance(self.value, bool) else self.value


def effective(resolution: Resolution) -> list[EffectiveSetting]:
    by_people = (OriginKind.FLAG, OriginKind.ENVIRONMENT, OriginKind.FILE)
    rows = []
    for setting in SCHEMA:
        value, origin = resolution.values[setting.key], resolution.origins[setting.key]
        rows.append(
            EffectiveSetting(
                key=setting.key,
                value=value if value is None or isinstance(value, bool) else setting.kind.format(value),
                source=str(origin),
                chosen=origin.kind in by_people,
                doc=setting.declaration.doc,
            )
        )
    return rows

"""Resolves raw values to Settings: flags > environment > file > defaults. Finds all problems at once. Also lists the
result.

Pure: the environment, the parsed file and the working directory are passed in. A default is, in this order, the one for
a single node, the profile's, or the declared one; ``{data_dir}`` in it stands for the value of that setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, cast, get_type_hints
from urllib.parse import quote

from streamhouse.core.errors import ConfigError, InvalidSetting
from streamhouse.core.settings.declared import DurabilitySetting, Profile, Settings, is_single_node
from streamhouse.core.settings.kinds import Directory, Url
from streamhouse.core.settings.rules import RULES
from streamhouse.core.settings.schema import DATA_DIR, Declaration, Setting, collect
from streamhouse.core.settings.sources import (
    ConfigFile,
    Found,
    Origin,
    OriginKind,
    RawValue,
    from_environment,
    from_file,
    from_flags,
)

SCHEMA: Final = collect(Settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """Valid settings, and the source of each (by key)."""

    settings: Settings
    values: Mapping[str, object]
    origins: Mapping[str, Origin]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The result of a check: the resolved settings, or all problems."""

    resolution: Resolution | None
    problems: tuple[ConfigError, ...]

    def require(self) -> Resolution:
        if self.resolution is not None:
            return self.resolution
        first, more = self.problems[0], len(self.problems) - 1
        if not more:
            raise first
        also = f"{more} more: `streamhouse config check` lists them all"
        raise type(first)(first.message, hint=f"{first.hint}; {also}" if first.hint else also)


def resolve(
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    file: ConfigFile | None = None,
    base_dir: Path = Path("/"),
) -> Resolved:
    """Relative paths count from ``base_dir``."""
    found: list[Found] = []
    if file is not None:
        found += from_file(file, SCHEMA)
    found += from_environment(environ or {}, SCHEMA)
    found += from_flags(flags or {}, SCHEMA)

    problems = [each for each in found if not isinstance(each, RawValue)]
    draft = _Draft(base_dir=base_dir, problems=problems)
    # Later sources replace earlier ones; what was replaced is not parsed, so a flag can rescue a broken file value.
    for raw in {each.setting.key: each for each in found if isinstance(each, RawValue)}.values():
        draft.take(raw)
    if draft.problems:
        return Resolved(resolution=None, problems=tuple(draft.problems))
    draft.fill_defaults()
    resolution = draft.build()
    broken = tuple(_broken_rules(resolution))
    return Resolved(resolution=None if broken else resolution, problems=broken)


class _Draft:
    """The values found so far."""

    def __init__(self, *, base_dir: Path, problems: list[ConfigError]) -> None:
        self.problems = problems
        self._base_dir = base_dir
        self._values: dict[str, Any] = {}
        self._origins: dict[str, Origin] = {}

    def take(self, raw: RawValue) -> None:
        try:
            value = raw.setting.kind.parse(raw.raw)
        except InvalidSetting as error:
            self.problems.append(
                InvalidSetting(f"{raw.setting.key} from {raw.origin}: {error.message}", hint=error.hint)
            )
            return
        self._put(raw.setting, value, raw.origin)

    def fill_defaults(self) -> None:
        late = [setting for setting in SCHEMA if setting.declaration.single_node is not None]
        for setting in SCHEMA:
            if setting not in late:
                self._fill(setting)
        for setting in late:
            self._fill(setting)

    def _fill(self, setting: Setting) -> None:
        if setting.key in self._values:
            return
        declared = setting.declaration
        if declared.single_node is not None and self._writes_to_wal():
            self._put_default(setting, declared.single_node, OriginKind.DERIVED, "single node")
        elif (text := _of_profile(declared, self._profile)) is not None:
            self._put_default(setting, text, OriginKind.PROFILE, self._profile.value)
        elif declared.default is None:
            self._values[setting.key] = None
            self._origins[setting.key] = Origin(kind=OriginKind.DEFAULT)
        elif DATA_DIR in declared.default:
            self._put_default(setting, declared.default, OriginKind.DERIVED, "in data_dir")
        else:
            self._put_default(setting, declared.default, OriginKind.DEFAULT, "")

    @property
    def _profile(self) -> Profile:
        profile = self._values.get("profile", Profile.DEFAULT)  # settings declared before it have no profile's default
        assert isinstance(profile, Profile)
        return profile

    def _put_default(self, setting: Setting, text: str, kind: OriginKind, detail: str) -> None:
        if DATA_DIR in text:
            data_dir = str(self._values["data_dir"])
            text = text.replace(DATA_DIR, quote(data_dir) if isinstance(setting.kind, Url) else data_dir)
        self._put(setting, setting.kind.parse(text), Origin(kind=kind, detail=detail))

    def _put(self, setting: Setting, value: object, origin: Origin) -> None:
        if isinstance(setting.kind, Directory):
            value = setting.kind.absolute(cast("Path", value), self._base_dir)
        self._values[setting.key] = value
        self._origins[setting.key] = origin

    def _writes_to_wal(self) -> bool:
        durability = self._values["durability"]
        single = is_single_node(
            data_dir=self._values["data_dir"],
            metadata_url=self._values["metadata.url"],
            store_url=self._values["store.url"],
            wal_dir=self._values["wal.dir"],
        )
        return single and durability is not DurabilitySetting.OBJECT

    def build(self) -> Resolution:
        by_section: dict[str, dict[str, object]] = {}
        for setting in SCHEMA:
            by_section.setdefault(setting.section, {})[setting.attribute] = self._values[setting.key]
        hints = get_type_hints(Settings)
        sections = {
            each.name: hints[each.name](**by_section[each.name])
            for each in fields(Settings)
            if is_dataclass(hints[each.name])
        }
        settings = Settings(**cast("dict[str, Any]", by_section[""]), **sections)
        return Resolution(
            settings=settings,
            values={setting.key: self._values[setting.key] for setting in SCHEMA},
            origins={setting.key: self._origins[setting.key] for setting in SCHEMA},
        )


def _of_profile(declared: Declaration, profile: Profile) -> str | None:
    """The default that a profile gives a setting; None where it gives none."""
    match profile:
        case Profile.FAST:
            return declared.fast
        case Profile.CHEAP:
            return declared.cheap
        case Profile.DEFAULT:
            return None


def _broken_rules(resolution: Resolution) -> Iterable[ConfigError]:
    by_key = {setting.key: setting for setting in SCHEMA}
    for rule in RULES:
        if rule.holds(resolution.settings):
            continue
        state = ", ".join(f"{key} is {_spelled(by_key[key], resolution)}" for key in rule.keys)
        yield InvalidSetting(f"{rule.must}: {rule.because}; now {state}", hint="change one of them")


def _spelled(setting: Setting, resolution: Resolution) -> str:
    value = resolution.values[setting.key]
    return f"{'unset' if value is None else setting.kind.format(value)} ({resolution.origins[setting.key]})"


# The settings in force, for `streamhouse config`.


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSetting:
    """One setting to print. ``value`` is in TOML's spelling, masked if it is a secret; None is unset."""

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
    """The settings in force, ready to print."""
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

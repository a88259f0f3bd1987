"""Settings: one declaration each, read from flags, environment, TOML file or default; each knows its source.

kinds.py      what a value may be: text, duration, size, choice, URL …
schema.py     how a setting is declared, and what follows from it (flag, variable, TOML key)
declared.py   the settings themselves: add one here, in one declaration; those of the Kafka port are in
              declared_kafka.py, of the admin port in declared_admin.py, of consumer groups in declared_groups.py
sources.py    flags, environment and TOML tables → raw values with their origin
resolve.py    precedence, defaults, parsing; the result, printable, with secrets masked
rules.py      rules between settings
load.py       reads the file and the environment; the only module here that does IO
"""

from streamhouse.core.settings.declared import (
    AgentSettings,
    AssignerSettings,
    DurabilitySetting,
    FlushSettings,
    LeaseSettings,
    LogFormat,
    LogLevel,
    LogSettings,
    MemorySettings,
    MetadataSettings,
    Profile,
    SegmentSettings,
    Settings,
    StoreSettings,
    WalSettings,
)
from streamhouse.core.settings.declared_admin import AdminSettings
from streamhouse.core.settings.declared_groups import GroupSettings
from streamhouse.core.settings.declared_kafka import KafkaSettings, is_loopback, is_wildcard
from streamhouse.core.settings.kinds import Address
from streamhouse.core.settings.load import attempt_settings, load_settings
from streamhouse.core.settings.resolve import SCHEMA, EffectiveSetting, Resolution, Resolved, effective, resolve
from streamhouse.core.settings.schema import Setting
from streamhouse.core.settings.sources import NON_SETTING_VARIABLES, Origin, OriginKind

__all__ = [
    "NON_SETTING_VARIABLES",
    "SCHEMA",
    "Address",
    "AdminSettings",
    "AgentSettings",
    "AssignerSettings",
    "DurabilitySetting",
    "EffectiveSetting",
    "FlushSettings",
    "GroupSettings",
    "KafkaSettings",
    "LeaseSettings",
    "LogFormat",
    "LogLevel",
    "LogSettings",
    "MemorySettings",
    "MetadataSettings",
    "Origin",
    "OriginKind",
    "Profile",
    "Resolution",
    "Resolved",
    "SegmentSettings",
    "Setting",
    "Settings",
    "StoreSettings",
    "WalSettings",
    "attempt_settings",
    "effective",
    "is_loopback",
    "is_wildcard",
    "load_settings",
    "resolve",
]

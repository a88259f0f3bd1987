"""Settings: precedence, defaults, profiles, and what must hold between settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.errors import InvalidSetting
from streamhouse.core.settings import (
    SCHEMA,
    DurabilitySetting,
    LogLevel,
    Origin,
    OriginKind,
    Profile,
    Settings,
    resolve,
)
from streamhouse.core.settings.rules import RULES
from streamhouse.core.settings.schema import collect, duration, size
from streamhouse.core.settings.sources import ConfigFile

HERE = Path("/some where")


def file(**table: object) -> ConfigFile:
    return ConfigFile(path=Path("/etc/streamhouse.toml"), table=table)


def settings(**flags: object) -> Settings:
    named = {key.replace("__", "."): value for key, value in flags.items()}
    return resolve(flags=named, base_dir=HERE).require().settings


class TestPrecedence:
    def test_flags_beat_environment_beats_file_beats_default(self) -> None:
        environ = {"STREAMHOUSE_LEASE_TTL": "50s"}
        table = file(lease={"ttl": "40s"})
        flags = {"lease.ttl": "60s"}

        def ttl(**sources: object) -> tuple[int, str]:
            found = resolve(**sources).require()  # type: ignore[arg-type]
            return found.settings.lease.ttl_ms, str(found.origins["lease.ttl"])

        assert ttl(flags=flags, environ=environ, file=table) == (60_000, "flag --lease-ttl")
        assert ttl(environ=environ, file=table) == (50_000, "environment STREAMHOUSE_LEASE_TTL")
        assert ttl(file=table) == (40_000, "file /etc/streamhouse.toml")
        assert ttl() == (30_000, "default")

    @given(st.sets(st.sampled_from(["file", "environ", "flags"])))
    def test_every_combination_of_sources_takes_the_strongest(self, present: set[str]) -> None:
        every = {
            "file": file(agent={"zone": "from-file"}),
            "environ": {"STREAMHOUSE_AGENT_ZONE": "from-environ"},
            "flags": {"agent.zone": "from-flags"},
        }
        strongest = next((name for name in ("flags", "environ", "file") if name in present), None)
        found = resolve(**{name: every[name] for name in present}).require()  # type: ignore[arg-type]
        assert found.settings.agent.zone == (f"from-{strongest}" if strongest else "default")

    def test_a_flag_rescues_a_value_that_is_broken_in_the_file(self) -> None:
        assert resolve(flags={"lease.ttl": "40s"}, file=file(lease={"ttl": "soon"})).problems == ()

    def test_a_flag_that_was_not_given_is_none_and_counts_for_nothing(self) -> None:
        found = resolve(flags={"lease.ttl": None}, environ={"STREAMHOUSE_LEASE_TTL": "50s"}).require()
        assert found.settings.lease.ttl_ms == 50_000

    def test_an_empty_variable_counts_as_not_set(self) -> None:
        found = resolve(environ={"STREAMHOUSE_AGENT_ZONE": "", "DISABLE_EMBEDDED_AGENT": ""}).require()
        assert found.settings.agent.zone == "default"
        assert found.settings.embedded_agent is True
        assert found.origins["agent.zone"] == Origin(kind=OriginKind.DEFAULT)


class TestNames:
    def test_one_declaration_gives_flag_variable_key_and_attribute(self) -> None:
        wal_dir = next(setting for setting in SCHEMA if setting.key == "wal.dir")
        assert (wal_dir.flag, wal_dir.variable, wal_dir.attribute) == ("--wal-dir", "STREAMHOUSE_WAL_DIR", "dir")
        ttl = next(setting for setting in SCHEMA if setting.key == "lease.ttl")
        assert (ttl.flag, ttl.variable, ttl.attribute) == ("--lease-ttl", "STREAMHOUSE_LEASE_TTL", "ttl_ms")

    def test_no_two_settings_share_a_name(self) -> None:
        for names in (
            [setting.key for setting in SCHEMA],
            [setting.flag for setting in SCHEMA],
            [setting.variable for setting in SCHEMA],
        ):
            assert len(set(names)) == len(names)

    def test_every_setting_says_what_it_is_and_why_its_default(self) -> None:
        for setting in SCHEMA:
            assert setting.declaration.doc.endswith("."), setting.key
            assert len(setting.declaration.why) > 10, setting.key

    def test_adding_a_setting_is_one_declaration(self) -> None:
        @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
        class More:
            pause_ms: int = duration("5s", at_least="1s", at_most="1m", doc="A pause.", why="why not")

        [setting] = collect(More)
        assert (setting.key, setting.flag, setting.variable) == ("pause", "--pause", "STREAMHOUSE_PAUSE")

    def test_a_declaration_without_its_unit_or_with_a_bad_default_fails_at_once(self) -> None:
        @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
        class Unitless:
            pause: int = duration("5s", at_least="1s", at_most="1m", doc="A pause.", why="why not")

        with pytest.raises(TypeError, match="must end in _ms"):
            collect(Unitless)
        with pytest.raises(InvalidSetting, match="outside"):
            size("5MiB", at_least="1KiB", at_most="1MiB", doc="x", why="y")


class TestValues:
    def test_the_documented_defaults(self) -> None:
        found = settings()
        assert found.data_dir == HERE / "streamhouse-data"
        assert found.agent.heartbeat_interval_ms == 20_000
        assert found.agent.liveness_timeout_ms == 60_000
        assert (found.lease.ttl_ms, found.lease.renew_interval_ms) == (30_000, 10_000)
        assert found.assigner.interval_ms == 30_000
        assert found.segment.max_bytes == 2**20
        assert found.embedded_agent is True
        assert found.durability is DurabilitySetting.AUTO
        assert found.log.level is LogLevel.INFO

    def test_a_toml_file_may_use_its_own_scalars(self) -> None:
        table = file(
            embedded_agent=False, store={"path_style": True}, segment={"max_bytes": 2_000_000}, flush={"interval": 100}
        )
        found = resolve(file=table).require().settings
        assert found.embedded_agent is False
        assert found.store.path_style is True
        assert found.segment.max_bytes == 2_000_000
        assert found.flush.interval_ms == 100

    @pytest.mark.parametrize(
        ("word", "value"), [("true", True), ("1", True), ("YES", True), ("on", True), ("0", False), ("off", False)]
    )
    def test_booleans_in_the_environment(self, word: str, value: bool) -> None:
        assert resolve(environ={"STREAMHOUSE_STORE_PATH_STYLE": word}).require().settings.store.path_style is value

    def test_defaults_follow_data_dir(self) -> None:
        found = resolve(flags={"data_dir": "else where"}, base_dir=HERE).require()
        assert found.settings.wal.dir == HERE / "else where" / "wal"
        assert found.settings.store.url == "file:///some%20where/else%20where/objects"
        assert found.settings.metadata.url == "sqlite:///some%20where/else%20where/metadata.db"
        assert str(found.origins["wal.dir"]) == "default, in data_dir"

    def test_settings_cannot_be_changed(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            settings().lease.ttl_ms = 5  # type: ignore[misc]


class TestProfile:
    def test_s3_16_the_fast_profile_detects_a_death_within_ten_seconds(self) -> None:
        found = settings(profile="fast")
        assert found.profile is Profile.FAST
        assert found.agent.liveness_timeout_ms + found.assigner.interval_ms <= 10_000
        assert found.lease.ttl_ms + found.assigner.interval_ms <= 10_000

    def test_it_changes_defaults_only_and_says_so(self) -> None:
        found = resolve(environ={"STREAMHOUSE_PROFILE": "fast", "STREAMHOUSE_LEASE_TTL": "8s"}).require()
        assert found.settings.lease.ttl_ms == 8_000
        assert str(found.origins["lease.ttl"]) == "environment STREAMHOUSE_LEASE_TTL"
        assert str(found.origins["lease.renew_interval"]) == "profile fast"
        assert str(found.origins["store.region"]) == "default"


class TestSingleNode:
    def test_everything_in_data_dir_is_durable_by_its_wal_and_flushes_every_second(self) -> None:
        found = resolve().require()
        assert found.settings.effective_durability is DurabilitySetting.WAL
        assert found.settings.segment.max_age_ms == 1_000
        assert str(found.origins["segment.max_age"]) == "default, single node"

    @pytest.mark.parametrize(
        "flags",
        [
            {"metadata.url": "postgresql://host/db"},
            {"store.url": "s3://bucket"},
            {"store.url": "file:///elsewhere"},
            {"wal.dir": "/elsewhere"},
            {"durability": "object"},
        ],
    )
    def test_anything_elsewhere_means_object_durability(self, flags: dict[str, object]) -> None:
        found = resolve(flags=flags, base_dir=HERE).require().settings
        assert found.effective_durability is DurabilitySetting.OBJECT
        assert found.segment.max_age_ms == 60_000

    def test_durability_wal_is_refused_where_it_would_be_a_lie(self) -> None:
        [problem] = resolve(flags={"durability": "wal", "store.url": "s3://bucket"}).problems
        assert "durability is wal (flag --durability)" in problem.message
        assert "store.url is s3://bucket (flag --store-url)" in problem.message

    def test_durability_wal_is_accepted_where_it_is_true(self) -> None:
        assert settings(durability="wal").effective_durability is DurabilitySetting.WAL


BROKEN: dict[str, dict[str, object]] = {
    "lease.renew_interval": {"lease.renew_interval": "15s"},
    "agent.heartbeat_interval": {"agent.heartbeat_interval": "30s"},
    "store.request_timeout": {"store.request_timeout": "2m"},
    "flush.interval": {"flush.interval": "2s"},
    "segment.max_bytes": {"segment.max_bytes": "10MiB", "memory.write_buffer_bytes": "16MiB"},
    "wal.file_bytes": {"wal.file_bytes": "1GiB", "wal.max_bytes": "1GiB"},
    "store.access_key_id": {"store.access_key_id": "AKIA"},
    "kafka.allow_remote": {"kafka.listen": "10.0.0.1:9092"},
    "kafka.advertised": {"kafka.advertised": "one:9092,two:9092"},
    "kafka.listen": {"kafka.listen": "0.0.0.0:9092", "kafka.allow_remote": True},
    "admin.allow_remote": {"admin.listen": "10.0.0.1:8080"},
    "group.min_session_timeout": {"group.min_session_timeout": "10s", "group.max_session_timeout": "9s"},
    "group.consumer_heartbeat": {"group.consumer_heartbeat": "45s"},
    "durability": {"durability": "wal", "metadata.url": "postgresql://u:hush@host/db"},
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.keys[0])
def test_every_rule_between_settings_is_enforced_and_explained(rule: object) -> None:
    assert {each.keys[0] for each in RULES} == BROKEN.keys()
    keys: tuple[str, ...] = rule.keys  # type: ignore[attr-defined]
    problems = resolve(flags=BROKEN[keys[0]]).problems
    assert [type(problem) for problem in problems] == [InvalidSetting]
    for key in keys:
        assert f"{key} is " in problems[0].message
    assert "hush" not in str(problems[0])


def test_a_rule_at_its_edge() -> None:
    assert settings(lease__renew_interval="14999ms").lease.renew_interval_ms == 14_999
    assert settings(store__request_timeout="1m").store.request_timeout_ms == 60_000

"""Settings from all sources: precedence, defaults, profiles, single node; and the settings in force, to print."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from settings_ground import HERE, file, only, settings

from streamhouse.core.errors import UnknownSetting
from streamhouse.core.settings import (
    SCHEMA,
    DurabilitySetting,
    LogLevel,
    Origin,
    OriginKind,
    Profile,
    effective,
    resolve,
)
from streamhouse.core.urls import MASK


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
    @pytest.mark.parametrize(("profile", "puts"), [("default", 20), ("fast", 200), ("cheap", 4)])
    def test_each_profile_has_its_budget_of_puts(self, profile: str, puts: int) -> None:
        found = settings(profile=profile)
        assert found.flush.max_puts_per_second == puts
        assert settings(profile=profile, **{"flush.max_puts_per_second": "7"}).flush.max_puts_per_second == 7

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


class TestProblems:
    def test_names_the_variable_or_the_file_and_key(self) -> None:
        problem = only(resolve(environ={"STREAMHOUSE_LEASE_TTL": "x"}).problems)
        assert "lease.ttl from environment STREAMHOUSE_LEASE_TTL: 'x'" in problem.message
        problem = only(resolve(file=file(lease={"ttl": "x"})).problems)
        assert "lease.ttl from file /etc/streamhouse.toml: 'x'" in problem.message

    def test_every_problem_is_found_in_one_go(self) -> None:
        outcome = resolve(
            flags={"nope": "1"}, environ={"STREAMHOUSE_LOG_LEVEL": "x"}, file=file(lease={"ttl": "x"}, zzz=1)
        )
        assert len(outcome.problems) == 4
        with pytest.raises(UnknownSetting, match="3 more: `streamhouse config check` lists them all"):
            outcome.require()


class TestSecrets:
    SECRET = "hush-hush"

    @pytest.mark.parametrize("raw", ["hush-hush\n", ["hush-hush"], {"hush-hush": "hush-hush"}])
    def test_a_wrong_secret_is_not_repeated(self, raw: object) -> None:
        problem = only(resolve(flags={"store.secret_access_key": raw, "store.access_key_id": "A"}).problems)
        assert self.SECRET not in str(problem)
        assert "store.secret_access_key from flag --store-secret-access-key" in problem.message

    def test_a_wrong_url_is_repeated_without_its_password(self) -> None:
        problem = only(resolve(environ={"STREAMHOUSE_METADATA_URL": f"postgres//u:{self.SECRET}@h"}).problems)
        assert "starts with none of" in problem.message
        problem = only(resolve(environ={"STREAMHOUSE_METADATA_URL": f"pg://u:{self.SECRET}@h/db"}).problems)
        assert f"pg://u:{MASK}@h/db" in problem.message
        assert self.SECRET not in str(problem)

    def test_neither_the_effective_view_nor_repr_shows_a_secret(self) -> None:
        found = resolve(
            environ={
                "STREAMHOUSE_STORE_ACCESS_KEY_ID": "AKIA",
                "STREAMHOUSE_STORE_SECRET_ACCESS_KEY": self.SECRET,
                "STREAMHOUSE_METADATA_URL": f"postgresql://user:{self.SECRET}@host/db",
                "STREAMHOUSE_STORE_ENDPOINT_URL": f"https://user:{self.SECRET}@host",
            }
        ).require()
        assert found.settings.store.secret_access_key == self.SECRET
        rows = {row.key: row for row in effective(found)}
        assert rows["store.secret_access_key"].value == MASK
        assert rows["metadata.url"].value == f"postgresql://user:{MASK}@host/db"
        assert self.SECRET not in repr(found.settings)
        assert not any(self.SECRET in repr(row) for row in rows.values())


class TestEffective:
    def test_every_setting_has_a_row_with_its_source(self) -> None:
        rows = effective(resolve(environ={"STREAMHOUSE_LEASE_TTL": "40000"}).require())
        assert [row.key for row in rows] == [setting.key for setting in SCHEMA]
        by_key = {row.key: row for row in rows}
        assert (by_key["lease.ttl"].value, by_key["lease.ttl"].chosen) == ("40s", True)
        assert by_key["lease.ttl"].source == "environment STREAMHOUSE_LEASE_TTL"
        assert (by_key["agent.id"].text, by_key["agent.id"].chosen) == ("(unset)", False)
        assert (by_key["embedded_agent"].value, by_key["embedded_agent"].text) == (True, "true")

    def test_what_is_shown_can_be_given_back(self) -> None:
        first = resolve(flags={"profile": "fast", "agent.id": "a"}, base_dir=Path("/x")).require()
        again = {row.key: row.value for row in effective(first)}
        assert resolve(flags=again, base_dir=Path("/y")).require().settings == first.settings

"""What is wrong is refused with its place, its value (secrets masked), what is expected, and a suggestion."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamhouse.core.errors import ConfigError, InvalidSetting, UnknownSetting
from streamhouse.core.limits import MAX_CONFIG_FILE_BYTES
from streamhouse.core.settings import (
    NON_SETTING_VARIABLES,
    SCHEMA,
    attempt_settings,
    effective,
    load_settings,
    resolve,
)
from streamhouse.core.settings.sources import ConfigFile
from streamhouse.core.urls import MASK


def only(problems: tuple[ConfigError, ...]) -> ConfigError:
    assert len(problems) == 1, problems
    return problems[0]


def file(**table: object) -> ConfigFile:
    return ConfigFile(path=Path("/etc/streamhouse.toml"), table=table)


class TestUnknownNames:
    def test_in_the_environment(self) -> None:
        problem = only(resolve(environ={"STREAMHOUSE_WAL_DRI": "hush"}).problems)
        assert isinstance(problem, UnknownSetting)
        assert "environment variable STREAMHOUSE_WAL_DRI" in problem.message
        assert problem.hint == "did you mean STREAMHOUSE_WAL_DIR?"
        assert "hush" not in str(problem)

    def test_an_empty_unknown_variable_is_still_unknown(self) -> None:
        assert isinstance(only(resolve(environ={"STREAMHOUSE_WAL_DRI": ""}).problems), UnknownSetting)

    def test_as_a_flag(self) -> None:
        problem = only(resolve(flags={"lease.tll": "5s"}).problems)
        assert "flag --lease-tll" in problem.message
        assert problem.hint == "did you mean --lease-ttl?"

    @pytest.mark.parametrize(
        ("table", "says", "hint"),
        [
            ({"data-dir": "x"}, "no setting data-dir", "did you mean data_dir?"),
            ({"wal": {"dirr": "x"}}, "no setting wal.dirr", "did you mean wal.dir?"),
            ({"leese": {"ttl": "5s"}}, "no section [leese]", "did you mean [lease]?"),
            ({"wal": {"dir": {"x": 1}}}, "wal.dir from file /etc/streamhouse.toml: expected text, got a table", "for"),
            ({"quux": 1}, "no setting quux", "`streamhouse config show` lists every setting"),
        ],
    )
    def test_in_the_file(self, table: dict[str, object], says: str, hint: str) -> None:
        problem = only(resolve(file=file(**table)).problems)
        assert "/etc/streamhouse.toml: " in problem.message
        assert says in problem.message
        assert problem.hint.startswith(hint)

    def test_a_section_given_as_a_value(self) -> None:
        problem = only(resolve(file=file(wal="/var/wal")).problems)
        assert problem.message == "/etc/streamhouse.toml: wal is a section, not a value"
        assert "[wal]" in problem.hint

    def test_variables_that_are_no_settings_are_let_through(self) -> None:
        environ = dict.fromkeys(NON_SETTING_VARIABLES, "anything")
        assert resolve(environ={**environ, "PATH": "/bin", "STREAM": "x"}).problems == ()
        assert not NON_SETTING_VARIABLES.keys() & {setting.variable for setting in SCHEMA}


class TestWrongValues:
    @pytest.mark.parametrize(
        ("key", "raw", "says", "hint"),
        [
            ("lease.ttl", "soon", "'soon' is not a duration", "30s"),
            ("lease.ttl", "30", "'30' is 30ms, outside 1s to 1h", "for example 30s"),
            ("lease.ttl", 1.5, "1.5 is not a duration", "30s"),
            ("lease.ttl", True, "True is not a duration", "30s"),
            ("segment.max_bytes", "101MiB", "outside 64KiB to 100MiB", "for example 1MiB"),
            ("segment.max_bytes", "1k", "ambiguous", "64MiB"),
            ("wal.max_batch_age", "11ms", "outside 0ms to 10ms", "for example 0ms"),
            ("log.level", "warn", "'warn' is none of debug, info, warning, error", "did you mean warning?"),
            ("log.level", 3, "3 is none of", "for example info"),
            ("store.path_style", "maybe", "'maybe' is neither true nor false", "true or false"),
            ("store.path_style", 2, "2 is neither true nor false", "true or false"),
            ("agent.zone", "", "it is empty", "eu-central-1a"),
            ("agent.zone", 7, "expected text, got an integer", "eu-central-1a"),
            ("agent.zone", ["a"], "expected text, got a list", "eu-central-1a"),
            ("agent.id", "a b", "'a b' does not fit: 1 to 256 letters", "agent-1"),
            ("agent.id", "a\nb", "control character", "agent-1"),
            ("agent.address", "no-port", "does not fit: host:port", "broker-1.internal:9092"),
            ("store.region", "x" * 5000, "longer than 4096 characters", "eu-central-1"),
            ("data_dir", "~/data", "only a shell expands", "in full"),
            ("metadata.url", "mysql://host/db", "starts with none of sqlite://, postgresql://", "postgresql://"),
            ("metadata.url", "postgresql:host", "starts with none of", "postgresql://"),
            ("metadata.url", "oxia://host:6648", "oxia:// is reserved", "use one of"),
            ("metadata.url", "sqlite://relative.db", "no absolute local path", "sqlite:///"),
            ("store.url", "/srv/objects", "starts with none of file://", "s3://bucket/prefix"),
            ("store.endpoint_url", "127.0.0.1:9000", "starts with none of http://", "http://127.0.0.1:9000"),
        ],
    )
    def test_says_what_where_and_what_instead(self, key: str, raw: object, says: str, hint: str) -> None:
        problem = only(resolve(flags={key: raw}).problems)
        assert isinstance(problem, InvalidSetting)
        assert problem.message.startswith(f"{key} from flag --{key.replace('.', '-').replace('_', '-')}: ")
        assert says in problem.message
        assert hint in problem.hint

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

    def test_a_very_long_value_is_shortened_in_the_message(self) -> None:
        assert len(only(resolve(flags={"log.level": "x" * 4000}).problems).message) < 250


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


class TestAlias:
    @pytest.mark.parametrize(("word", "embedded"), [("1", False), ("true", False), ("0", True), ("no", True)])
    def test_s3_6_disable_embedded_agent(self, word: str, embedded: bool) -> None:
        found = resolve(environ={"DISABLE_EMBEDDED_AGENT": word}).require()
        assert found.settings.embedded_agent is embedded
        assert str(found.origins["embedded_agent"]) == "environment DISABLE_EMBEDDED_AGENT"

    def test_it_stands_at_the_level_of_the_environment(self) -> None:
        found = resolve(environ={"DISABLE_EMBEDDED_AGENT": "1"}, flags={"embedded_agent": True}).require()
        assert found.settings.embedded_agent is True
        found = resolve(environ={"DISABLE_EMBEDDED_AGENT": "1"}, file=file(embedded_agent=True)).require()
        assert found.settings.embedded_agent is False

    def test_a_contradiction_is_refused(self) -> None:
        environ = {"DISABLE_EMBEDDED_AGENT": "1", "STREAMHOUSE_EMBEDDED_AGENT": "true"}
        assert "contradict each other" in only(resolve(environ=environ).problems).message
        for agreeing in ("false", "0", "off"):
            assert resolve(environ={**environ, "STREAMHOUSE_EMBEDDED_AGENT": agreeing}).problems == ()

    def test_a_wrong_variable_of_our_own_name_is_not_hidden_by_the_alias(self) -> None:
        environ = {"DISABLE_EMBEDDED_AGENT": "1", "STREAMHOUSE_EMBEDDED_AGENT": "maybe"}
        assert "STREAMHOUSE_EMBEDDED_AGENT: 'maybe'" in only(resolve(environ=environ).problems).message

    def test_a_word_that_is_no_boolean_is_refused(self) -> None:
        problem = only(resolve(environ={"DISABLE_EMBEDDED_AGENT": "please"}).problems)
        assert "DISABLE_EMBEDDED_AGENT: 'please' is neither true nor false" in problem.message


class TestFile:
    """Search order, and everything that can be wrong with a file."""

    def zone(self, tmp_path: Path, **named: object) -> str:
        return load_settings(working_dir=tmp_path, **{"environ": {}, **named}).settings.agent.zone  # type: ignore[arg-type]

    def test_the_flag_beats_the_variable_beats_the_working_directory(self, tmp_path: Path) -> None:
        for name in ("flag", "variable", "streamhouse"):
            (tmp_path / f"{name}.toml").write_text(f'[agent]\nzone = "{name}"\n')
        environ = {"STREAMHOUSE_CONFIG": "variable.toml"}
        assert self.zone(tmp_path, environ=environ, config_path=Path("flag.toml")) == "flag"
        assert self.zone(tmp_path, environ=environ) == "variable"
        assert self.zone(tmp_path) == "streamhouse"

    def test_no_file_is_fine_unless_one_was_named(self, tmp_path: Path) -> None:
        assert self.zone(tmp_path) == "default"
        for named in ({"config_path": Path("gone.toml")}, {"environ": {"STREAMHOUSE_CONFIG": "gone.toml"}}):
            with pytest.raises(InvalidSetting, match=r"gone\.toml: No such file.*named by"):
                self.zone(tmp_path, **named)

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"[agent\n", "not valid TOML"),
            (b'[agent]\nzone = "a"\nzone = "b"\n', "not valid TOML"),
            (b"\xff\xfe", "not UTF-8"),
            (b"#" * (MAX_CONFIG_FILE_BYTES + 1), "larger than 1MiB"),
            (b"a = " + b"[" * 100_000, "nested too deeply"),
        ],
    )
    def test_a_file_that_cannot_be_used(self, tmp_path: Path, content: bytes, says: str) -> None:
        path = tmp_path / "streamhouse.toml"
        path.write_bytes(content)
        problem = only(attempt_settings(environ={}, working_dir=tmp_path).problems)
        assert str(path) in problem.message
        assert says in problem.message

    def test_a_directory_in_its_place(self, tmp_path: Path) -> None:
        (tmp_path / "streamhouse.toml").mkdir()
        problem = only(attempt_settings(environ={}, working_dir=tmp_path).problems)
        assert "Is a directory" in problem.message

    def test_dotted_keys_and_sections_are_the_same(self, tmp_path: Path) -> None:
        (tmp_path / "streamhouse.toml").write_text('data_dir = "d"\nagent.zone = "dotted"\n')
        assert self.zone(tmp_path) == "dotted"

    def test_left_out_the_process_itself_is_asked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for variable in [name for name in os.environ if name.startswith("STREAMHOUSE_")]:
            monkeypatch.delenv(variable)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("STREAMHOUSE_AGENT_ZONE", "of-the-process")
        found = load_settings().settings
        assert found.agent.zone == "of-the-process"
        assert found.data_dir == Path(os.path.realpath(tmp_path)) / "streamhouse-data"

"""Flags, variables and TOML tables: a name that is not declared is refused with its place and a suggestion."""

from __future__ import annotations

import pytest
from settings_ground import file, only

from streamhouse.core.errors import UnknownSetting
from streamhouse.core.settings import NON_SETTING_VARIABLES, SCHEMA, Origin, OriginKind, resolve
from streamhouse.core.settings.sources import Found, RawValue, from_environment, from_file, from_flags


def given(found: Found) -> tuple[str, str, object]:
    assert isinstance(found, RawValue)
    return found.setting.key, str(found.origin), found.raw


class TestRawValues:
    """Straight from each source: values as they are, with their place, whether they make sense or not."""

    def test_a_flag_is_passed_on_as_it_is_unless_it_was_not_given(self) -> None:
        (found,) = from_flags({"lease.ttl": "soon", "data_dir": None}, SCHEMA)
        assert given(found) == ("lease.ttl", "flag --lease-ttl", "soon")

    def test_variables_come_in_the_order_of_their_names_and_foreign_ones_not_at_all(self) -> None:
        environ = {"STREAMHOUSE_WAL_DIR": "w", "STREAMHOUSE_DATA_DIR": "d", "HOME": "/", "STREAMHOUSE_LEASE_TTL": ""}
        assert [given(found) for found in from_environment(environ, SCHEMA)] == [
            ("data_dir", "environment STREAMHOUSE_DATA_DIR", "d"),
            ("wal.dir", "environment STREAMHOUSE_WAL_DIR", "w"),
        ]

    def test_a_file_gives_top_level_keys_and_those_of_its_sections(self) -> None:
        table = file(data_dir="d", lease={"ttl": 5, "renew_interval": [1]})
        assert [given(found) for found in from_file(table, SCHEMA)] == [
            ("data_dir", "file /etc/streamhouse.toml", "d"),
            ("lease.ttl", "file /etc/streamhouse.toml", 5),
            ("lease.renew_interval", "file /etc/streamhouse.toml", [1]),
        ]

    def test_a_problem_does_not_hide_what_comes_after_it(self) -> None:
        found = list(from_file(file(quux=1, lease={"tll": 5, "ttl": 6}, wal="x", data_dir="d"), SCHEMA))
        assert [type(each).__name__ for each in found] == [
            "UnknownSetting",
            "UnknownSetting",
            "RawValue",
            "InvalidSetting",
            "RawValue",
        ]

    @pytest.mark.parametrize(
        ("origin", "text"),
        [
            (Origin(kind=OriginKind.PROFILE, detail="fast"), "profile fast"),
            (Origin(kind=OriginKind.DERIVED, detail="single node"), "default, single node"),
            (Origin(kind=OriginKind.DEFAULT), "default"),
        ],
    )
    def test_an_origin_that_no_person_chose_says_so(self, origin: Origin, text: str) -> None:
        assert str(origin) == text

    def test_a_very_long_name_is_shortened(self) -> None:
        (found,) = from_environment({"STREAMHOUSE_" + "X" * 5_000: "1"}, SCHEMA)
        assert isinstance(found, UnknownSetting)
        assert len(found.message) < 200


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

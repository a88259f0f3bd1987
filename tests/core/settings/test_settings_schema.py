"""One declaration of a setting, and the names that follow from it."""

from __future__ import annotations

import dataclasses

import pytest

from streamhouse.core.errors import InvalidSetting
from streamhouse.core.settings import SCHEMA
from streamhouse.core.settings.schema import (
    DATA_DIR,
    Setting,
    collect,
    directory,
    duration,
    number,
    optional_text,
    optional_url,
    size,
    text,
)


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Depot:
    """A section of settings that only these tests have."""

    place_dir: object = directory(f"{DATA_DIR}/depot", doc="Where.", why="beside the rest")
    token: str | None = optional_text(example="x", doc="A token.", why="none by default", secret=True)
    page_url: str | None = optional_url(schemes=("http",), example="http://h", doc="A page.", why="none by default")
    page_bytes: int = size("4KiB", at_least="1KiB", at_most="1MiB", doc="A page.", why="small")
    count: int = number(3, at_least=1, at_most=9, doc="How many.", why="a few", single_node=1)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    name: str = text("x", example="x", doc="A name.", why="any")
    depot: Depot


def depot() -> dict[str, Setting]:
    return {setting.key: setting for setting in collect(Root)}


def test_settings_are_collected_in_the_order_of_declaration_with_their_section() -> None:
    assert list(depot()) == [
        "name",
        "depot.place_dir",
        "depot.token",
        "depot.page_url",
        "depot.page_bytes",
        "depot.count",
    ]
    assert depot()["depot.page_bytes"].attribute == "page_bytes", "only a duration's key drops its unit"


def test_a_default_in_the_data_directory_waits_until_that_is_known() -> None:
    setting = depot()["depot.place_dir"]
    assert setting.declaration.default == "{data_dir}/depot"
    assert setting.kind.example == "/var/lib/streamhouse/depot"


def test_what_may_hold_a_secret_is_not_in_the_repr() -> None:
    hidden = {field.name for field in dataclasses.fields(Depot) if not field.repr}
    assert hidden == {"token", "page_url"}


def test_a_default_for_a_single_node_must_fit_too() -> None:
    assert depot()["depot.count"].declaration.single_node == "1"
    with pytest.raises(InvalidSetting, match="outside 1 to 9"):
        number(3, at_least=1, at_most=9, doc="How many.", why="a few", single_node=10)


def test_a_section_holds_settings_and_no_sections() -> None:
    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Plain:
        count: int

    with pytest.raises(TypeError, match=r"Plain\.count is neither a setting nor a section"):
        collect(Plain)
    with pytest.raises(TypeError, match=r"Root\.depot is neither a setting nor a section"):
        collect(Nested)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Nested:
    root: Root

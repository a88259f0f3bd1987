"""What a value of each kind may be, and that a wrong one is refused with what is expected and an example."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import pytest
from settings_ground import only

from streamhouse.core.errors import InvalidSetting
from streamhouse.core.settings import resolve
from streamhouse.core.settings.kinds import (
    MAX_ADDRESSES,
    Address,
    Addresses,
    AnyKind,
    Boolean,
    Choice,
    Directory,
    Duration,
    Number,
    Size,
    Text,
    Url,
)
from streamhouse.core.urls import MASK


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


DURATION = Duration(at_least_ms=1_000, at_most_ms=60_000, example="5s")
SIZE = Size(at_least_bytes=1024, at_most_bytes=2**20, example="64KiB")
NUMBER = Number(at_least=-3, at_most=12, example="1")
ADDRESSES = Addresses(example="localhost:9092")
CHOICE: Choice[Colour] = Choice(options=Colour, example="red")
URL = Url(schemes=("s3", "file"), reserved=("gs",), example="s3://bucket")


class TestEachKind:
    """Straight on the kinds, as resolve calls them."""

    @pytest.mark.parametrize(
        ("kind", "raw", "value", "text"),
        [
            (DURATION, "1s", 1_000, "1s"),
            (DURATION, "1m", 60_000, "1m"),
            (DURATION, 2_500, 2_500, "2500ms"),
            (SIZE, "1KiB", 1024, "1KiB"),
            (SIZE, 2**20, 2**20, "1MiB"),
            (NUMBER, " 12 ", 12, "12"),
            (NUMBER, "-3", -3, "-3"),
            (CHOICE, " RED ", Colour.RED, "red"),
            (Boolean(), "off", False, "false"),
            (Boolean(), 1, True, "true"),
            (Text(example="x", pattern="[a-z]+", allowed="letters"), "abc", "abc", "abc"),
            (ADDRESSES, ["a:1", "[::1]:2"], (Address(host="a", port=1), Address(host="::1", port=2)), "a:1,[::1]:2"),
            (URL, " s3://bucket/prefix ", "s3://bucket/prefix", "s3://bucket/prefix"),
        ],
    )
    def test_a_value_in_its_bounds_is_taken_and_written_back(
        self, kind: AnyKind, raw: object, value: object, text: str
    ) -> None:
        assert kind.parse(raw) == value
        assert kind.format(value) == text
        assert kind.parse(text) == value

    @pytest.mark.parametrize(
        ("kind", "raw"),
        [
            (DURATION, "90s"),
            (DURATION, "999ms"),
            (SIZE, 1023),
            (NUMBER, 13),
            (NUMBER, True),
            (NUMBER, "1" * 19),
            (CHOICE, "blue"),
            (Boolean(), ""),
            (Text(example="x", pattern="[a-z]+", allowed="letters"), "abc1"),
            (ADDRESSES, "a:0"),
            (URL, "gs://bucket"),
        ],
    )
    def test_a_value_beyond_its_bounds_is_refused(self, kind: AnyKind, raw: object) -> None:
        with pytest.raises(InvalidSetting):
            kind.parse(raw)

    def test_the_bounds_are_in_the_words_of_the_reference(self) -> None:
        assert [kind.allowed for kind in (DURATION, SIZE, NUMBER, CHOICE, URL)] == [
            "1s to 1m",
            "1KiB to 1MiB",
            "-3 to 12",
            "red, green",
            "s3://, file://",
        ]

    def test_a_process_listens_on_a_bounded_number_of_addresses(self) -> None:
        many = [f"host:{port}" for port in range(1, MAX_ADDRESSES + 2)]
        assert len(ADDRESSES.parse(many[:-1])) == MAX_ADDRESSES
        with pytest.raises(InvalidSetting, match=f"{MAX_ADDRESSES + 1} addresses are given"):
            ADDRESSES.parse(many)
        with pytest.raises(InvalidSetting, match="0 addresses are given"):
            ADDRESSES.parse([])

    def test_port_0_is_an_address_only_where_the_system_may_choose_the_port(self) -> None:
        assert Addresses(example="x", ports_from=0).parse("host:0") == (Address(host="host", port=0),)
        with pytest.raises(InvalidSetting, match="a port is 1 to 65535"):
            ADDRESSES.parse("host:0")

    def test_a_secret_is_masked_and_never_in_an_error(self) -> None:
        secret = Text(example="x", secret=True, pattern="[a-z]+", allowed="letters")
        assert secret.format(secret.parse("hush")) == MASK
        with pytest.raises(InvalidSetting, match=r"^the value does not fit: letters") as refused:
            secret.parse("HUSH")
        assert "HUSH" not in str(refused.value)
        assert URL.format("s3://user:hush@bucket") == f"s3://user:{MASK}@bucket"

    def test_a_relative_path_counts_from_the_working_directory(self) -> None:
        kind = Directory(example="/data")
        assert kind.absolute(kind.parse("a/../b"), Path("/here")) == Path("/here/b")
        assert kind.absolute(kind.parse("/abs/./b"), Path("/here")) == Path("/abs/b")


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

    def test_a_very_long_value_is_shortened_in_the_message(self) -> None:
        assert len(only(resolve(flags={"log.level": "x" * 4000}).problems).message) < 250

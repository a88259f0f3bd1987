"""The settings of the Kafka port: addresses, and what keeps an open port off the network."""

from __future__ import annotations

import pytest

from streamhouse.core.errors import InvalidSetting
from streamhouse.core.settings import Address, Settings, is_loopback, is_wildcard, resolve


def kafka(**flags: object) -> Settings:
    return resolve(flags={f"kafka.{name}": value for name, value in flags.items()}).require().settings


def test_the_default_is_kafkas_port_on_the_loopback_and_undecided_whether_to_serve() -> None:
    settings = kafka().kafka
    assert settings.listen == (Address(host="127.0.0.1", port=9092),)
    assert settings.advertised is None
    assert settings.enabled is None


def test_addresses_come_as_text_or_as_a_list() -> None:
    expected = (Address(host="127.0.0.1", port=9092), Address(host="::1", port=0))
    assert kafka(listen="127.0.0.1:9092, [::1]:0").kafka.listen == expected
    assert kafka(listen=["127.0.0.1:9092", "[::1]:0"]).kafka.listen == expected
    assert ",".join(map(str, expected)) == "127.0.0.1:9092,[::1]:0"


@pytest.mark.parametrize("text", ["", "localhost", "localhost:", "localhost:70000", "a b:1", "::1:9092", "x:1,", 9092])
def test_an_address_that_is_none_is_refused(text: object) -> None:
    with pytest.raises(InvalidSetting, match=r"kafka\.listen"):
        kafka(listen=text)


def test_a_port_that_clients_are_told_is_a_real_one() -> None:
    with pytest.raises(InvalidSetting, match="1 to 65535"):
        kafka(advertised="broker:0")


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "[::]", "broker.internal"])
def test_off_loopback_needs_an_explicit_word_because_there_is_no_authentication(host: str) -> None:
    with pytest.raises(InvalidSetting, match="no authentication yet"):
        kafka(listen=f"{host}:9092", advertised="broker:9092")
    assert kafka(listen=f"{host}:9092", advertised="broker:9092", allow_remote=True).kafka.allow_remote


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "[::1]", "localhost", "LOCALHOST"])
def test_loopback_needs_none(host: str) -> None:
    assert kafka(listen=f"{host}:9092").kafka.remote_hosts == []


def test_a_wildcard_needs_an_address_to_tell_clients() -> None:
    with pytest.raises(InvalidSetting, match=r"kafka\.advertised or agent\.address must be set"):
        kafka(listen="0.0.0.0:9092", allow_remote=True)
    flags = {"kafka.listen": "0.0.0.0:9092", "kafka.allow_remote": True, "agent.address": "broker:9092"}
    assert resolve(flags=flags).require().settings.agent.address == "broker:9092"


def test_each_listener_has_its_own_advertised_address() -> None:
    with pytest.raises(InvalidSetting, match="one address for each"):
        kafka(listen="127.0.0.1:9092,127.0.0.1:9093", advertised="localhost:9092")


def test_a_server_without_an_agent_may_have_a_kafka_port() -> None:
    settings = resolve(flags={"kafka.enabled": True, "embedded_agent": False}).require().settings
    assert (settings.kafka.enabled, settings.embedded_agent) == (True, False)


@pytest.mark.parametrize("value", ["0", "many", True, 1.5, "1e3"])
def test_a_count_is_a_whole_number_in_its_range(value: object) -> None:
    with pytest.raises(InvalidSetting, match="num_partitions"):
        kafka(num_partitions=value)
    assert kafka(num_partitions=" 12 ").kafka.num_partitions == kafka(num_partitions=12).kafka.num_partitions


def test_names_are_not_resolved_to_decide_what_is_loopback() -> None:
    assert not is_loopback("localhost.example.com")
    assert is_wildcard("::")
    assert not is_wildcard("localhost")

"""What a run is told is checked before anything starts, and every refusal names the option."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
from chaos_histories import chaos_options as options

from streamhouse.chaos.options import FaultKind, parse_faults, parse_pids, parse_settings
from streamhouse.core.errors import InvalidRequest


def test_faults_by_name() -> None:
    assert parse_faults("kill, s3,kill") == (FaultKind.KILL, FaultKind.S3)
    assert parse_faults("all") == tuple(FaultKind)
    assert parse_faults("none") == ()
    with pytest.raises(InvalidRequest, match="flood"):
        parse_faults("kill,flood")


def test_good_options_pass() -> None:
    options().check()
    options(agents=16, settings={"lease.ttl": "10s"}).check()
    options(bootstrap="127.0.0.1:9092, [::1]:9093").check()


@pytest.mark.parametrize("value", [nan, inf, -inf, 0, -1])
@pytest.mark.parametrize("name", ["minutes", "fault_every_s", "rate", "settle_s", "unavailable_limit_s"])
def test_a_number_that_is_not_above_0_or_not_finite_is_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidRequest, match="above 0"):
        options(**{name: value}).check()


@pytest.mark.parametrize("address", ["foo", ":9092", "host:", "host:x", "host:0", "host:65536", "", "a:1,b"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        options(bootstrap=address).check()
    assert caught.value.message == f"--bootstrap takes HOST:PORT, not {address!r}"


@pytest.mark.parametrize("pid", [0, -1, 2**31 - 1])
def test_a_process_that_does_not_exist_is_refused(pid: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        options(bootstrap="127.0.0.1:1", pids=(pid,)).check()
    assert caught.value.message == f"--pids: there is no process {pid}"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"foo": "bar"}, "--set foo: there is no such setting"),
        ({"lease.ttl": "soon"}, "--set lease.ttl: 'soon' is not a duration"),
    ],
)
def test_a_wrong_setting_is_refused(settings: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        options(settings=settings).check()
    assert caught.value.message == said


def test_settings_that_contradict_each_other_are_refused_and_named_as_they_were_given() -> None:
    with pytest.raises(InvalidRequest, match=r"^--set: .*lease\.ttl is 2s \(--set lease\.ttl\)"):
        options(settings={"lease.ttl": "2s"}).check()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"pids": (1,)}, "--pids needs --bootstrap: the run knows the processes that it starts itself"),
        (
            {"settings": {"lease.ttl": "10s"}, "bootstrap": "a:1"},
            "--set has no effect with --bootstrap: it configures agents that the run starts",
        ),
        (
            {"agents": 3, "bootstrap": "a:1"},
            "--agents has no effect with --bootstrap: the run starts no agent",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        options(**more).check()
    assert caught.value.message == said


def test_empty_parts_of_a_list_of_faults_are_ignored() -> None:
    assert parse_faults("kill,, s3,") == (FaultKind.KILL, FaultKind.S3)
    assert parse_faults("all,") == tuple(FaultKind)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("disk,all", "all and none stand alone"),
        ("none,kill", "all and none stand alone"),
        (" , ", "--faults names no fault"),
        ("", "--faults names no fault"),
    ],
)
def test_a_list_of_faults_that_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        parse_faults(text)


def test_settings_are_pairs_and_the_last_one_of_a_key_counts() -> None:
    assert parse_settings(["lease.ttl = 10s", "log.level=info", "log.level=debug=1"]) == {
        "lease.ttl": "10s",
        "log.level": "debug=1",
    }
    for wrong in ("lease.ttl", "=10s", ""):
        with pytest.raises(InvalidRequest, match="--set takes KEY=VALUE"):
            parse_settings([wrong])


def test_process_ids_are_numbers_with_commas() -> None:
    assert parse_pids("4711, 4712") == (4711, 4712)
    assert parse_pids(None) == parse_pids("") == ()
    with pytest.raises(InvalidRequest, match="--pids takes process ids with commas, not '4711;4712'"):
        parse_pids("4711;4712")


def test_a_setting_of_the_user_replaces_that_of_the_run() -> None:
    assert options().agent_settings().wal.file_bytes == 1 << 20
    assert options(settings={"wal.file_bytes": "2MiB"}).agent_settings().wal.file_bytes == 2 << 20


@pytest.mark.parametrize(("agents", "good"), [(0, False), (1, True), (16, True), (17, False)])
def test_the_number_of_agents_is_bounded(agents: int, good: bool) -> None:
    if good:
        options(agents=agents).check()
        return
    with pytest.raises(InvalidRequest, match="--agents must be 1 to 16"):
        options(agents=agents).check()

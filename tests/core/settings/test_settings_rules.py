"""What must hold between settings: every rule is enforced and explained."""

from __future__ import annotations

import pytest
from settings_ground import settings

from streamhouse.core.errors import InvalidSetting
from streamhouse.core.settings import resolve
from streamhouse.core.settings.rules import RULES

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

"""Topic configs keep Kafka's names, types, ranges and defaults; what differs is named here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streamhouse.core.limits import MAX_BATCH_BYTES
from streamhouse.core.topic_config import TOPIC_CONFIGS, ConfigType, effective

KAFKA = {
    row[0]: row[1:]
    for row in (
        tuple(cell.strip() for cell in line.split("|"))
        for line in (Path(__file__).parent / "kafka_4_2_topic_configs.txt").read_text().splitlines()
        if not line.startswith("#")
    )
}


class TestAgainstKafka:
    """kafka_4_2_topic_configs.txt was printed by Kafka's own classes."""

    def test_every_topic_config_of_kafka_4_2_is_there_and_three_are_ours(self) -> None:
        assert TOPIC_CONFIGS.keys() - KAFKA.keys() == {"agent.group", "diskless.enable", "retention.hold.ms"}
        assert KAFKA.keys() - TOPIC_CONFIGS.keys() == set()

    @pytest.mark.parametrize("name", KAFKA)
    def test_type_and_synonyms(self, name: str) -> None:
        kind, _, _, synonyms = KAFKA[name]
        assert TOPIC_CONFIGS[name].type.name == kind
        assert ", ".join(TOPIC_CONFIGS[name].synonyms) == synonyms

    def test_s3_2_only_the_retention_default_differs(self) -> None:
        differing = {name for name in KAFKA if TOPIC_CONFIGS[name].default != KAFKA[name][1]}
        assert differing == {"retention.ms"}
        assert effective({}).retention_ms == 24 * 3600 * 1000

    @pytest.mark.parametrize("name", KAFKA)
    def test_the_lower_and_upper_bounds(self, name: str) -> None:
        key, valid = TOPIC_CONFIGS[name], KAFKA[name][2]
        bounds = re.match(r"\[(-?\d+),\.\.\.(?:,(-?\d+))?\]", valid)
        if bounds is None:
            assert key.at_least is None
            return
        assert key.at_least == int(bounds[1])
        expected_top = int(bounds[2]) if bounds[2] else None
        if name == "max.message.bytes":
            expected_top = MAX_BATCH_BYTES
        assert key.at_most == expected_top

    def test_the_type_codes_of_describe_configs(self) -> None:
        assert [(each.name, each.value) for each in ConfigType] == [
            ("BOOLEAN", 1),
            ("STRING", 2),
            ("INT", 3),
            ("SHORT", 4),
            ("LONG", 5),
            ("DOUBLE", 6),
            ("LIST", 7),
            ("CLASS", 8),
            ("PASSWORD", 9),
        ]

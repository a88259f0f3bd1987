"""Topic configs keep Kafka's names, types, ranges and defaults; what differs is named here."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.errors import InvalidTopicConfig
from streamhouse.core.limits import MAX_BATCH_BYTES, MAX_TOPIC_CONFIG_CHARS
from streamhouse.core.topic_config import (
    TOPIC_CONFIGS,
    ConfigSource,
    ConfigType,
    Synonym,
    TopicConfig,
    describe,
    effective,
    validate,
    validate_change,
)

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

    def test_every_topic_config_of_kafka_4_2_is_there_and_two_are_ours(self) -> None:
        assert TOPIC_CONFIGS.keys() - KAFKA.keys() == {"agent.group", "diskless.enable"}
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


class TestValidate:
    @pytest.mark.parametrize(
        ("name", "text", "stored"),
        [
            ("cleanup.policy", "compact", "compact"),
            ("cleanup.policy", "delete", "delete"),
            ("cleanup.policy", " compact , delete ", "compact,delete"),
            ("cleanup.policy", "compact,compact", "compact"),
            ("cleanup.policy", "", ""),
            ("retention.ms", "-1", "-1"),
            ("retention.ms", " 5 ", "5"),
            ("retention.ms", "+5", "5"),
            ("retention.ms", "007", "7"),
            ("retention.bytes", "-5", "-5"),
            ("preallocate", "TRUE", "true"),
            ("preallocate", " false ", "false"),
            ("min.cleanable.dirty.ratio", "1e-1", "0.1"),
            ("min.cleanable.dirty.ratio", ".5", "0.5"),
            ("min.cleanable.dirty.ratio", "1", "1.0"),
            ("leader.replication.throttled.replicas", "*", "*"),
            ("leader.replication.throttled.replicas", "0:1, 1:2", "0:1,1:2"),
            ("leader.replication.throttled.replicas", "", ""),
            ("compression.gzip.level", "-1", "-1"),
            ("compression.gzip.level", "9", "9"),
            ("compression.type", " producer ", "producer"),
            ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
            ("max.message.bytes", "0", "0"),
            ("segment.bytes", "1048576", "1048576"),
            ("remote.storage.enable", "true", "true"),
            ("diskless.enable", "true", "true"),
        ],
    )
    def test_what_kafka_accepts_is_stored_in_one_spelling(self, name: str, text: str, stored: str) -> None:
        assert validate({name: text}) == {name: stored}
        assert validate({name: stored}) == {name: stored}

    @pytest.mark.parametrize(
        ("name", "text", "says"),
        [
            ("cleanup.policy", "Delete", "'Delete' is not known"),
            ("cleanup.policy", "delete,", "an item of the list is empty"),
            ("cleanup.policy", "delete,keep", "'keep' is not known"),
            ("segment.bytes", "1048575", "expected at least 1048576"),
            ("retention.ms", "-2", "expected at least -1"),
            ("retention.ms", "5_0", "not a whole number"),
            ("retention.ms", "5s", "not a whole number"),
            ("retention.ms", "", "not a whole number"),
            ("retention.ms", "٣", "not a whole number"),
            ("retention.ms", "1" * 5000, "not a whole number"),
            ("retention.ms", "9223372036854775808", "does not fit 64 bits"),
            ("segment.bytes", "2147483648", "does not fit 32 bits"),
            ("max.message.bytes", str(MAX_BATCH_BYTES + 1), f"expected 0 to {MAX_BATCH_BYTES}"),
            ("preallocate", "yes", "expected true or false"),
            ("min.cleanable.dirty.ratio", "1.01", "expected 0 to 1"),
            ("min.cleanable.dirty.ratio", "NaN", "not a number"),
            ("min.cleanable.dirty.ratio", "0x1p-1", "not a number"),
            ("min.cleanable.dirty.ratio", "1e999", "expected 0 to 1"),
            ("leader.replication.throttled.replicas", "x", "partition:broker"),
            ("leader.replication.throttled.replicas", "*,0:1", "partition:broker"),
            ("compression.gzip.level", "0", "expected 1 to 9 or -1"),
            ("compression.type", "none", "expected one of uncompressed, zstd, lz4"),
            ("message.timestamp.type", "createtime", "expected one of CreateTime, LogAppendTime"),
            ("leader.replication.throttled.replicas", "0:1," * 10_000, f"longer than {MAX_TOPIC_CONFIG_CHARS}"),
            ("retention.ms", None, "needs a text value"),
        ],
    )
    def test_what_does_not_fit_is_refused_with_what_would(self, name: str, text: str, says: str) -> None:
        with pytest.raises(InvalidTopicConfig) as caught:
            validate({name: text})
        assert says in str(caught.value)
        assert name in caught.value.message
        assert len(str(caught.value)) < 400

    @pytest.mark.parametrize("codec", ["gzip", "lz4", "snappy", "zstd", "uncompressed"])
    def test_compression_type_is_any_codec_of_kafka(self, codec: str) -> None:
        assert validate({"compression.type": codec}) == {"compression.type": codec}
        assert effective({"compression.type": codec}).compression_type == codec

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("retention.msec", "did you mean retention.ms?"),
            ("Cleanup.Policy", "did you mean cleanup.policy?"),
            ("xyzzy", "`streamhouse topic-configs` lists"),
            ("internal.segment.bytes", "did you mean segment.bytes?"),
            ("", "`streamhouse topic-configs` lists"),
        ],
    )
    def test_an_unknown_config_is_refused_with_a_suggestion(self, name: str, hint: str) -> None:
        with pytest.raises(InvalidTopicConfig) as caught:
            validate({name: "1"})
        assert caught.value.hint.startswith(hint)
        assert "there is no topic config" in caught.value.message

    def test_compaction_lags_must_fit_together(self) -> None:
        assert validate({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
        with pytest.raises(InvalidTopicConfig, match="is larger than max"):
            validate({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})

    @given(st.dictionaries(st.sampled_from([*TOPIC_CONFIGS, "nope"]), st.text(max_size=40), max_size=4))
    def test_any_text_is_normalised_or_refused(self, configs: dict[str, str]) -> None:
        try:
            stored = validate(configs)
        except InvalidTopicConfig:
            return
        assert stored.keys() == configs.keys()
        assert validate(stored) == stored

    @pytest.mark.parametrize("key", TOPIC_CONFIGS.values(), ids=lambda key: key.name)
    def test_every_default_is_valid_and_in_canonical_spelling(self, key: object) -> None:
        name, default = key.name, key.default  # type: ignore[attr-defined]
        assert validate({name: default}) == {name: default}


class TestChange:
    def test_set_and_delete_give_the_whole_new_state(self) -> None:
        current = {"retention.ms": "5", "cleanup.policy": "delete"}
        changed = validate_change(current, {"cleanup.policy": "compact, delete"}, ["retention.ms", "segment.ms"])
        assert changed == {"cleanup.policy": "compact,delete"}
        assert current == {"retention.ms": "5", "cleanup.policy": "delete"}

    def test_the_result_must_hold_together_not_only_the_change(self) -> None:
        with pytest.raises(InvalidTopicConfig, match="is larger than"):
            validate_change({"max.compaction.lag.ms": "5"}, {"min.compaction.lag.ms": "6"})

    def test_setting_and_deleting_one_config_at_once_is_refused(self) -> None:
        with pytest.raises(InvalidTopicConfig, match="set and deleted"):
            validate_change({}, {"retention.ms": "5"}, ["retention.ms"])

    def test_deleting_an_unknown_config_is_refused(self) -> None:
        with pytest.raises(InvalidTopicConfig, match="there is no topic config"):
            validate_change({}, {}, ["retention"])

    @pytest.mark.parametrize(
        ("current", "set", "delete"),
        [
            ({}, {"diskless.enable": "true"}, []),
            ({"diskless.enable": "true"}, {"diskless.enable": "false"}, []),
            ({"diskless.enable": "true"}, {}, ["diskless.enable"]),
        ],
    )
    def test_r19_diskless_enable_cannot_change_after_creation(
        self, current: dict[str, str], set: dict[str, str], delete: list[str]
    ) -> None:
        with pytest.raises(InvalidTopicConfig, match="fixed when the topic is created"):
            validate_change(current, set, delete)

    @pytest.mark.parametrize(
        ("current", "set", "delete"),
        [
            ({"diskless.enable": "true"}, {"diskless.enable": "TRUE", "retention.ms": "1"}, []),
            ({}, {"diskless.enable": "false"}, []),
            ({"diskless.enable": "false"}, {}, ["diskless.enable"]),
        ],
    )
    def test_r19_saying_the_same_again_is_no_change(
        self, current: dict[str, str], set: dict[str, str], delete: list[str]
    ) -> None:
        validate_change(current, set, delete)


class TestViews:
    def test_every_config_has_a_typed_attribute(self) -> None:
        names = {field.name for field in dataclasses.fields(TopicConfig) if field.init}
        assert names == {key.attribute for key in TOPIC_CONFIGS.values()}

    def test_the_attributes_have_the_types_they_are_annotated_with(self) -> None:
        view = effective({})
        kinds = {"int": int, "bool": bool, "float": float, "str": str, "tuple[str, ...]": tuple}
        for field in (each for each in dataclasses.fields(TopicConfig) if each.init):
            assert type(getattr(view, field.name)) is kinds[str(field.type)], field.name

    def test_the_effective_view_fills_in_defaults(self) -> None:
        view = effective({"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"})
        assert (view.compacts, view.deletes, view.log_append_time) == (True, False, True)
        assert (view.max_message_bytes, view.diskless_enable) == (1_048_588, False)
        both = effective({"cleanup.policy": "compact,delete"})
        assert (both.compacts, both.deletes) == (True, True)
        neither = effective({"cleanup.policy": ""})
        assert (neither.compacts, neither.deletes) == (False, False)

    def test_a_description_lists_every_config_with_source_and_synonyms(self) -> None:
        rows = {row.name: row for row in describe({"retention.ms": "05"})}
        assert list(rows) == sorted(TOPIC_CONFIGS)
        assert rows["retention.ms"].value == "5"
        assert rows["retention.ms"].source is ConfigSource.DYNAMIC_TOPIC_CONFIG
        assert rows["retention.ms"].synonyms == (
            Synonym(name="retention.ms", value="5", source=ConfigSource.DYNAMIC_TOPIC_CONFIG),
            Synonym(name="log.retention.ms", value="86400000", source=ConfigSource.DEFAULT_CONFIG),
        )
        assert rows["segment.ms"].source is ConfigSource.DEFAULT_CONFIG
        assert rows["preallocate"].synonyms[0].name == "log.preallocate"
        assert rows["remote.storage.enable"].synonyms == ()
        assert rows["diskless.enable"].read_only is True

    def test_an_inert_config_says_so_to_whoever_asks(self) -> None:
        rows = {row.name: row for row in describe({"min.insync.replicas": "2"})}
        assert rows["min.insync.replicas"].value == "2"
        assert "No effect here: there are no follower replicas" in rows["min.insync.replicas"].documentation
        assert "No effect" not in rows["retention.ms"].documentation

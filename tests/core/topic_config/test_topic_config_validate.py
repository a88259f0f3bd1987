"""What may be stored as a topic's configs, and what may change once the topic exists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.errors import InvalidTopicConfig
from streamhouse.core.topic_config import TOPIC_CONFIGS, effective, validate, validate_change


class TestValidate:
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

"""A topic's configs with every default filled in, as the broker uses them and as a client asks for them."""

from __future__ import annotations

import dataclasses

from streamhouse.core.topic_config import TOPIC_CONFIGS, ConfigSource, Synonym, TopicConfig, describe, effective


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

    def test_an_inert_config_says_so_in_its_description(self) -> None:
        rows = {row.name: row for row in describe({"min.insync.replicas": "2"})}
        assert rows["min.insync.replicas"].value == "2"
        assert "No effect here: there are no follower replicas" in rows["min.insync.replicas"].documentation
        assert "No effect" not in rows["max.message.bytes"].documentation

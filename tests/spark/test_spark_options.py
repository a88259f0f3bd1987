"""The source's options: those of Spark's Kafka source, ours beside them, and one clear line for whatever is wrong."""

from __future__ import annotations

import pytest

from streamhouse.core.errors import ConfigError, InvalidSetting, UnknownSetting
from streamhouse.spark.offsets import TopicPartition
from streamhouse.spark.options import Edge, ReadOptions, chosen_columns, parse_read_options


def batch(**options: str) -> ReadOptions:
    return parse_read_options({"subscribe": "orders", **options}, streaming=False)


def stream(**options: str) -> ReadOptions:
    return parse_read_options({"subscribe": "orders", **options}, streaming=True)


class TestAsTheKafkaSource:
    def test_a_batch_reads_everything_and_a_stream_what_comes(self) -> None:
        assert (batch().starting.edge, batch().ending.edge) == (Edge.EARLIEST, Edge.LATEST)
        assert stream().starting.edge is Edge.LATEST

    def test_names_are_taken_in_any_case(self) -> None:
        assert batch(MAXOFFSETSPERTRIGGER="10").limits.max_rows == 10

    def test_one_time_for_all_beats_a_time_for_each_beats_offsets(self) -> None:
        all_three = {
            "startingTimestamp": "5",
            "startingOffsetsByTimestamp": '{"orders":{"0":7}}',
            "startingOffsets": "earliest",
        }
        assert batch(**all_three).starting.timestamp_ms == 5
        del all_three["startingTimestamp"]
        assert batch(**all_three).starting.by_partition == {TopicPartition("orders", 0): 7}

    def test_offsets_by_partition_with_their_two_special_numbers(self) -> None:
        position = stream(startingOffsets='{"orders":{"0":23,"1":-1,"2":-2}}').starting
        assert position.edge is Edge.OFFSETS
        assert position.by_partition == {
            TopicPartition("orders", 0): 23,
            TopicPartition("orders", 1): -1,
            TopicPartition("orders", 2): -2,
        }

    def test_other_options_of_kafka_clients_are_taken_and_named_for_one_warning(self) -> None:
        options = batch(**{"kafka.bootstrap.servers": "b:9092", "kafka.sasl.mechanism": "PLAIN", "kafka.group.id": "g"})
        assert options.ignored == ("kafka.bootstrap.servers", "kafka.sasl.mechanism")
        assert options.group_id == "g"

    def test_headers_only_when_asked_for(self) -> None:
        assert chosen_columns({}) == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
        assert chosen_columns({"includeHeaders": "true"})[-1] == "headers"

    def test_spark_writes_minutes_in_two_ways(self) -> None:
        assert stream(maxTriggerDelay="2min").limits.max_delay_ms == stream(maxTriggerDelay="2m").limits.max_delay_ms


class TestOurs:
    def test_columns_in_the_order_asked_for(self) -> None:
        assert batch(columns="offset, TIMESTAMPTYPE").columns == ("offset", "timestampType")

    def test_sizes_have_units(self) -> None:
        assert stream(maxBytesPerTrigger="64MiB").limits.max_bytes == 64 << 20

    def test_the_address_may_be_spelled_as_the_setting_is(self) -> None:
        batch(**{"metadata.url": "sqlite:///x/metadata.db", "STORE_URL": "file:///x/objects", "dataDir": "/x"})


WRONG = [
    ({"startingOffset": "earliest"}, "did you mean startingOffsets?"),
    ({"kafka.group.id": ""}, "kafka.group.id: a group's name"),
    ({"path": "orders"}, "a topic has no path"),
    ({"subscribePattern": "o.*"}, "subscribe and subscribePattern are given together"),
    ({"subscribe": ""}, "no topic is named"),
    ({"subscribe": "a b"}, "'a b' is not allowed"),
    ({"startingOffsets": "earlyest"}, "did you mean earliest?"),
    ({"startingOffsets": "latest"}, "cannot be latest"),
    ({"startingOffsets": '{"orders":{"0":-1}}'}, "cannot be latest"),
    ({"startingOffsets": '{"orders":{"0":-3}}'}, "-3 is not a number"),
    ({"startingOffsets": '{"orders":{"x":3}}'}, "'x' is not a partition"),
    ({"startingOffsets": '{"orders":3}'}, "no object of partitions"),
    ({"startingOffsets": "{"}, "not a JSON object"),
    ({"startingOffsets": '{"orders":{"0":1.5}}'}, "1.5 is not a number"),
    ({"startingOffsets": '{"orders":{"0":true}}'}, "True is not a number"),
    ({"endingOffsets": "earliest"}, "cannot be earliest"),
    ({"endingOffsets": '{"orders":{"0":-2}}'}, "cannot be earliest"),
    ({"endingOffsetsByTimestamp": '{"orders":{"0":-1}}'}, "-1 is not a number"),
    ({"failOnDataLoss": "maybe"}, "neither true nor false"),
    ({"minPartitions": "0"}, "whole number from 1"),
    ({"minPartitions": "2.5"}, "whole number from 1"),
    ({"maxBytesPerTrigger": "64M"}, "ambiguous"),
    ({"maxBytesPerTrigger": "0"}, "0 bytes"),
    ({"columns": "kye"}, "did you mean key?"),
    ({"columns": "key,KEY"}, "named twice"),
    ({"columns": ","}, "no column"),
    ({"kafka.isolation.level": "serializable"}, "read_committed or read_uncommitted"),
    ({"startingOffsetsByTimestampStrategy": "lattest"}, "did you mean latest?"),
    ({"pinTimeout": "1s"}, "between 10s and"),
    ({"maxTriggerDelay": "soon"}, "'soon' is not a duration"),
    ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "more than maxOffsetsPerTrigger"),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_a_wrong_option_is_one_line_that_says_what_to_write(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        batch(**options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).count("option ") <= 1


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(InvalidSetting, match="a stream has no end"):
        stream(**{name: "latest"})


def test_a_read_names_its_topics() -> None:
    with pytest.raises(InvalidSetting, match=r"no topic is named.*subscribe"):
        parse_read_options({}, streaming=False)


def test_an_assignment_lists_partitions() -> None:
    assigned = parse_read_options({"assign": '{"orders":[1,0]}'}, streaming=False).subscription.partitions
    assert assigned == (TopicPartition("orders", 0), TopicPartition("orders", 1))
    with pytest.raises(InvalidSetting, match="no list of partitions"):
        parse_read_options({"assign": '{"orders":{"0":1}}'}, streaming=False)


def test_an_unknown_pattern_is_told() -> None:
    with pytest.raises(InvalidSetting, match="not a regular expression"):
        parse_read_options({"subscribePattern": "("}, streaming=False)


def test_an_option_that_resembles_none_lists_them_all() -> None:
    with pytest.raises(UnknownSetting, match="the options are subscribe, "):
        batch(zzz="1")

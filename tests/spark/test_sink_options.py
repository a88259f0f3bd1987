"""The sink's options and columns: what is taken, and one clear line for what is not."""

from __future__ import annotations

import pytest

from streamhouse.core.errors import ConfigError, InvalidSetting, UnknownSetting
from streamhouse.spark.sink_options import check_schema, parse_write_options
from streamhouse.wire.codecs import Codec


def test_defaults() -> None:
    options = parse_write_options({"topic": "orders"}, streaming=True)
    assert (options.topic, options.codec, options.txn_app_id) == ("orders", None, None)
    assert options.ignored == ()


def test_names_are_those_of_the_kafka_sink_and_of_delta() -> None:
    options = parse_write_options(
        {
            "TOPIC": "orders",
            "kafka.bootstrap.servers": "there:9092",
            "kafka.compression.type": "zstd",
            "checkpointLocation": "/tmp/cp",
            "parallelism": "4",
            "txnAppId": "nightly",
            "txnVersion": "7",
            "commitTimeout": "30s",
            "blobBytes": "8MiB",
            "metadata.url": "postgresql://there/db",
        },
        streaming=False,
    )
    assert options.codec is Codec.ZSTD
    assert options.ignored == ("kafka.bootstrap.servers",)
    assert (options.txn_app_id, options.txn_version) == ("nightly", 7)
    assert (options.commit_timeout_ms, options.blob_bytes) == (30_000, 8 << 20)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topc": "orders"}, "the sink has no option 'topc' (did you mean topic?)"),
        ({"path": "orders"}, "a topic has no path"),
        ({"topic": "no such name"}, "option topic: "),
        ({"compression": "lz5"}, "there is no codec 'lz5' (did you mean lz4?)"),
        ({"txnVersion": "1"}, "txnAppId and txnVersion belong together"),
        ({"txnAppId": "a", "txnVersion": "one"}, "option txnVersion: 'one' is not a whole number"),
        ({"blobBytes": "1"}, "option blobBytes: 1 bytes are not between"),
        ({"commitTimeout": "soon"}, "option commitTimeout: "),
    ],
)
def test_what_is_wrong_is_one_line_that_says_what_to_write(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_write_options(given, streaming=False)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_stream_has_its_id_in_its_checkpoint() -> None:
    with pytest.raises(InvalidSetting, match="txnAppId is for batch writes"):
        parse_write_options({"txnAppId": "a", "txnVersion": "1"}, streaming=True)


def test_columns_are_found_by_name_whatever_their_order_and_case() -> None:
    fields = [
        ("Value", "string"),
        ("offset", "bigint"),
        ("KEY", "binary"),
        ("timestampType", "int"),
        ("topic", "string"),
    ]
    assert check_schema(fields, topic=None) == {"value": 0, "key": 2, "topic": 4}
    assert check_schema(fields, topic="orders") == {"value": 0, "key": 2}, "the option wins over the column"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([("key", "binary")], "there is no column 'value'"),
        ([("value", "bigint")], "column 'value' is bigint, not binary or string"),
        ([("value", "binary"), ("vaule", "binary")], "a topic has no column 'vaule' (did you mean value?)"),
        ([("value", "binary"), ("amount", "double")], "put the rest into value"),
        ([("value", "binary"), ("VALUE", "binary")], "column 'VALUE' is there twice"),
        ([("value", "binary"), ("timestamp", "timestamp_ntz")], "column 'timestamp' is timestamp_ntz, not timestamp"),
        ([("value", "binary"), ("headers", "map<string,binary>")], "column 'headers' is map<string,binary>"),
    ],
)
def test_a_schema_that_does_not_fit_is_one_clear_line(fields: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        check_schema(fields, topic="orders")
    assert said in str(refused.value)


def test_without_a_topic_anywhere_it_says_how_to_name_one() -> None:
    with pytest.raises(InvalidSetting, match="no topic is named"):
        check_schema([("value", "binary")], topic=None)
    with pytest.raises(UnknownSetting):
        parse_write_options({"subscribe": "orders"}, streaming=False)

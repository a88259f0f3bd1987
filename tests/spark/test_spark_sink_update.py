"""`write_stream`: the mode decides between the sink and foreachBatch, and every batch has a key of its own."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from streamhouse.core.errors import InvalidSetting
from streamhouse.spark.shim import FORMAT
from streamhouse.spark.sink_update import write_stream


class Frame:
    """A streaming DataFrame and its writer, which note what they are told."""

    def __init__(self, *, streaming: bool = True) -> None:
        self.isStreaming = streaming
        self.told: dict[str, Any] = {}
        self.options_of_format: dict[str, str] = {}
        self.each: Any = None

    @property
    def writeStream(self) -> Frame:  # noqa: N802 - Spark's name
        return self

    def outputMode(self, mode: str) -> Frame:  # noqa: N802 - Spark's name
        self.told["mode"] = mode
        return self

    def option(self, name: str, value: str) -> Frame:
        self.told[name] = value
        return self

    def queryName(self, name: str) -> Frame:  # noqa: N802 - Spark's name
        self.told["name"] = name
        return self

    def trigger(self, **given: Any) -> Frame:
        self.told["trigger"] = given
        return self

    def format(self, name: str) -> Frame:
        self.told["format"] = name
        return self

    def options(self, **given: str) -> Frame:
        self.options_of_format = given
        return self

    def foreachBatch(self, each: Any) -> Frame:  # noqa: N802 - Spark's name
        self.each = each
        return self

    def start(self) -> Frame:
        return self


class Batch:
    """One micro-batch: it reads the checkpoint's metadata by Spark, and notes how it is written."""

    def __init__(self, reads: list[str]) -> None:
        def text(path: str) -> Any:
            reads.append(path)
            row = SimpleNamespace(value=json.dumps({"id": "the query's id"}))
            return SimpleNamespace(collect=lambda: [row])

        self.sparkSession = SimpleNamespace(read=SimpleNamespace(text=text))
        self.written: dict[str, Any] = {}

    @property
    def write(self) -> Batch:
        return self

    def format(self, name: str) -> Batch:
        self.written["format"] = name
        return self

    def options(self, **given: str) -> Batch:
        self.written |= given
        return self

    def option(self, name: str, value: Any) -> Batch:
        self.written[name] = value
        return self

    def mode(self, name: str) -> Batch:
        self.written["mode"] = name
        return self

    def save(self) -> None:
        self.written["saved"] = True


def started(frame: Frame, *args: Any, **options: Any) -> Frame:
    return write_stream(frame, *args, checkpoint="/c/", **options)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("mode", ["append", "complete"])
def test_append_and_complete_go_to_the_sink(mode: str) -> None:
    frame = started(
        Frame(), "orders", mode=mode, name="q", trigger={"availableNow": True}, compression="zstd", includeHeaders=True
    )
    assert frame.told == {
        "mode": mode,
        "checkpointLocation": "/c/",
        "name": "q",
        "trigger": {"availableNow": True},
        "format": FORMAT,
    }
    assert frame.options_of_format == {"topic": "orders", "compression": "zstd", "includeHeaders": "true"}
    assert frame.each is None


def test_update_writes_each_batch_under_the_querys_id_and_the_batchs_number() -> None:
    frame = started(Frame(), "orders", mode="update")
    reads: list[str] = []
    batches = [Batch(reads), Batch(reads)]
    for number, batch in enumerate(batches):
        frame.each(batch, number)
    assert reads == ["/c/metadata"], "read once"
    assert [batch.written["txnVersion"] for batch in batches] == [0, 1]
    assert batches[0].written == {
        "format": FORMAT,
        "topic": "orders",
        "failOnChangedBatch": "true",
        "txnAppId": "the query's id",
        "txnVersion": 0,
        "mode": "append",
        "saved": True,
    }


def test_a_choice_of_the_user_about_changed_batches_counts() -> None:
    frame = started(Frame(), mode="update", failonchangedbatch=False)
    batch = Batch([])
    frame.each(batch, 0)
    assert batch.written["failonchangedbatch"] == "false"
    assert "failOnChangedBatch" not in batch.written
    assert "topic" not in batch.written, "each row's column says it"


def test_a_mode_that_does_not_exist_is_refused_with_what_may_be_meant() -> None:
    with pytest.raises(InvalidSetting, match="there is no output mode 'apend'") as refused:
        started(Frame(), "orders", mode="apend")
    assert "append" in str(refused.value.hint)


def test_a_frame_that_does_not_stream_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="does not stream"):
        started(Frame(streaming=False), "orders")

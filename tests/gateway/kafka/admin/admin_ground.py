"""A real platform with a Kafka port, and a client that asks it one thing at a time, in any version."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streamhouse.gateway.kafka.wire.headers import has_flexible_response, request_frame
from streamhouse.gateway.kafka.wire.message import Message
from streamhouse.gateway.kafka.wire.schema import read_response, write_request
from streamhouse.testing.plugin import RunningStreamHouse, running

WAIT_S = 120
METADATA, CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID = 3, 19, 20, 22
DESCRIBE_CONFIGS, ALTER_CONFIGS, DESCRIBE_LOG_DIRS, CREATE_PARTITIONS = 32, 33, 35, 37
INCREMENTAL_ALTER_CONFIGS, DESCRIBE_CLUSTER = 44, 60
TOPIC, BROKER, BROKER_LOGGER, GROUP = 2, 4, 8, 32


class KafkaPort:
    def __init__(self, platform: RunningStreamHouse, address: str) -> None:
        self.platform = platform
        self.address = address
        self._names = itertools.count()
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=WAIT_S)

    def close(self) -> None:
        self._socket.close()

    def ask(self, key: int, version: int, **fields: Any) -> Message:
        return self.ask_bytes(key, version, write_request(key, version, fields))

    def ask_bytes(self, key: int, version: int, request: bytes) -> Message:
        self._socket.sendall(request_frame(key, version, 1, "admin-test", request))
        answer = self._exactly(int.from_bytes(self._exactly(4), "big"))
        body = answer[5 if has_flexible_response(key, version) else 4 :]
        return read_response(key, version, memoryview(body))

    def _exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            piece = self._socket.recv(count - len(found))
            assert piece, "the connection was closed"
            found += piece
        return bytes(found)

    def on_view(self, look: Callable[[Any], Any]) -> Any:
        """What ``look`` says of the agent's cluster view, in the agent's own thread."""

        async def over_there() -> Any:
            return look(self.platform.api.agent.broker.view)

        return self.platform.run(over_there())

    # The usual first steps.

    def new_name(self) -> str:
        return f"topic-{next(self._names)}"

    def new_topic(self, partitions: int = 1, **configs: str) -> str:
        (made,) = self.create({"name": self.new_name(), "num_partitions": partitions, "configs": configs})
        assert made.error_code == 0, made.error_message
        return str(made.name)

    def create(self, *topics: dict[str, Any], version: int = 7, **more: Any) -> list[Message]:
        wanted = [
            {
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [],
                **topic,
                "configs": [{"name": name, "value": value} for name, value in topic.get("configs", {}).items()],
            }
            for topic in topics
        ]
        found: list[Message] = self.ask(CREATE_TOPICS, version, topics=wanted, timeout=10_000, **more).topics
        return found

    def metadata(self, *names: str, version: int = 12, create: bool = False) -> Message:
        asked = [{"name": name} for name in names]
        return self.ask(METADATA, version, topics=asked, allow_auto_topic_creation=create)

    def configs(self, resource_type: int, name: str, **more: Any) -> dict[str, Message]:
        resource = {"resource_type": resource_type, "resource_name": name, "configuration_keys": None}
        (found,) = self.ask(DESCRIBE_CONFIGS, 4, resources=[resource], **more).results
        assert found.error_code == 0, found.error_message
        return {row.name: row for row in found.configs}


@contextmanager
def kafka_port(data_dir: Path, **options: Any) -> Iterator[KafkaPort]:
    settings = {"data_dir": str(data_dir), "kafka_enabled": True, "kafka_listen": "127.0.0.1:0", **options}
    with running(settings) as platform:
        port = KafkaPort(platform, platform.api.kafka_addresses[0])
        try:
            yield port
        finally:
            port.close()

from __future__ import annotations

from collections.abc import Iterator

import pytest
from admin_ground import KafkaPort, kafka_port


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaPort]:
    with kafka_port(tmp_path_factory.mktemp("admin")) as made:
        yield made

"""Idempotent producers of the Python clients, one record in a batch, with one way to send and to learn the outcome."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaException, Producer
from scripted_broker import TOPIC

from streamhouse.testing.services.ports import LOOPBACK

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas in a way that Python 3.11 deprecates
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

WAIT_S: Final = 60.0
_BACKOFF_MS: Final = 50
_FILL_BYTES: Final = 100
"""Values are filled up to this length, so that a small batch size of a client means one record in a batch."""


class IdempotentProducer(Protocol):
    def send(self, values: Sequence[str]) -> list[bool]:
        """Send all without waiting; then say of each whether the client reports it as delivered."""

    def close(self) -> None: ...


class Librdkafka:
    def __init__(self, port: int) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": f"{LOOPBACK}:{port}",
                "enable.idempotence": True,
                "batch.num.messages": 1,
                "linger.ms": 0,
                "retry.backoff.ms": _BACKOFF_MS,
                "message.timeout.ms": int(WAIT_S * 1000),
                "log_level": 0,
            }
        )

    def send(self, values: Sequence[str]) -> list[bool]:
        outcomes: dict[str, bool] = {}
        for value in values:
            try:
                self._producer.produce(TOPIC, _filled(value), partition=0, on_delivery=_into(outcomes, value))
            except KafkaException:  # the producer had a fatal error
                outcomes[value] = False
        deadline = time.monotonic() + WAIT_S
        while len(outcomes) < len(values):
            assert time.monotonic() < deadline, f"librdkafka reports only {outcomes}"
            with contextlib.suppress(KafkaException):  # a fatal error is raised here too
                self._producer.poll(0.1)
        return [outcomes[value] for value in values]

    def close(self) -> None:
        self._producer.purge()
        with contextlib.suppress(KafkaException):
            self._producer.flush(1)


class KafkaPython:
    def __init__(self, port: int) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=f"{LOOPBACK}:{port}",
            enable_idempotence=True,
            batch_size=1,
            linger_ms=0,
            retry_backoff_ms=_BACKOFF_MS,
        )

    def send(self, values: Sequence[str]) -> list[bool]:
        futures = [self._producer.send(TOPIC, _filled(value), partition=0) for value in values]
        return [_succeeds(lambda future=future: future.get(timeout=WAIT_S), KafkaError) for future in futures]

    def close(self) -> None:
        self._producer.close(timeout=5)


class Aiokafka:
    """Runs aiokafka in an event loop of its own, because the test is not asynchronous."""

    def __init__(self, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._producer = self._call(self._started(port))

    async def _started(self, port: int) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            bootstrap_servers=f"{LOOPBACK}:{port}",
            enable_idempotence=True,
            max_batch_size=_FILL_BYTES + 80,
            linger_ms=0,
            retry_backoff_ms=_BACKOFF_MS,
        )
        await producer.start()
        return producer

    def send(self, values: Sequence[str]) -> list[bool]:
        return self._call(self._send(values))  # type: ignore[no-any-return]

    async def _send(self, values: Sequence[str]) -> list[bool]:
        futures = [await self._producer.send(TOPIC, _filled(value), partition=0) for value in values]
        done = await asyncio.gather(*futures, return_exceptions=True)
        return [not isinstance(outcome, BaseException) for outcome in done]

    def close(self) -> None:
        self._call(self._producer.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT_S)


def _filled(value: str) -> bytes:
    return value.ljust(_FILL_BYTES, ".").encode()


def _into(outcomes: dict[str, bool], value: str) -> Callable[[object, object], None]:
    def delivered(error: object, _message: object) -> None:
        outcomes[value] = error is None

    return delivered


def _succeeds(act: Callable[[], object], *errors: type[BaseException]) -> bool:
    try:
        act()
    except errors:
        return False
    return True

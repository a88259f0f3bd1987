"""A Kafka server in a process of its own, to be fuzzed: every API of the table, read and answered by its schema.

Prints its port, then serves until its standard input ends, then prints what it has counted as JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from dataclasses import asdict
from typing import Any

from streamhouse.gateway.kafka.api import Api, Call, apis
from streamhouse.gateway.kafka.handlers import api_18_api_versions as _registers_it  # noqa: F401
from streamhouse.gateway.kafka.server import KafkaServer, Listener
from streamhouse.gateway.kafka.wire.message import Message
from streamhouse.gateway.kafka.wire.table import message_names, message_spec


async def answer_by_default(call: Call, request: Message) -> dict[str, Any]:
    repr(request)
    return {}


def every_api() -> dict[int, Api]:
    served = {}
    for name in message_names():
        if name.endswith(".request"):
            key, versions = int(name.partition(".")[0]), message_spec(name).versions
            served[key] = Api(
                key=key,
                min_version=versions[0],
                max_version=versions[-1],
                advertised_min_version=versions[0],
                cold=answer_by_default,
            )
    return served | {18: apis()[18]}


async def serve() -> None:
    listener = Listener(name="fuzz", host="127.0.0.1", port=0, advertised_host="127.0.0.1", advertised_port=0)
    server = KafkaServer(broker=None, listeners=[listener], served=every_api())  # type: ignore[arg-type]
    await server.bind()
    await server.open()
    sys.stdout.write(f"{server.listeners[0].port}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await server.drain(1)
    await server.close()
    sys.stdout.write(json.dumps(asdict(server.stats)) + "\n")


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    asyncio.run(serve())

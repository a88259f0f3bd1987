"""Private, throw-away servers for tests and for people: PostgreSQL, an S3 server, Oxia, Apache Kafka, Spark.

Each runs on free loopback ports in a directory of its own and is gone, process and directory, when its ``with`` block
ends, when the test run ends, and when the test run is killed. A server that is missing or does not start is an error,
never a reason to skip. Owns the servers only: what runs on them belongs to the tests.
"""

from __future__ import annotations

from streamhouse.core.errors import ServiceError, ServiceFailed, ServiceMissing
from streamhouse.testing.services.binaries import find_oxia, find_postgres, find_weed
from streamhouse.testing.services.kafka import KafkaCluster, KafkaService, start_kafka, start_kafka_cluster
from streamhouse.testing.services.kafka_jars import KafkaJars, find_kafka
from streamhouse.testing.services.oxia import OxiaService, start_oxia
from streamhouse.testing.services.postgres import PostgresService, start_postgres
from streamhouse.testing.services.s3 import S3Service, start_s3
from streamhouse.testing.services.spark import (
    SparkCluster,
    SparkConnectService,
    find_spark,
    start_spark,
    start_spark_connect,
)

__all__ = [
    "KafkaCluster",
    "KafkaJars",
    "KafkaService",
    "OxiaService",
    "PostgresService",
    "S3Service",
    "ServiceError",
    "ServiceFailed",
    "ServiceMissing",
    "SparkCluster",
    "SparkConnectService",
    "find_kafka",
    "find_oxia",
    "find_postgres",
    "find_spark",
    "find_weed",
    "start_kafka",
    "start_kafka_cluster",
    "start_oxia",
    "start_postgres",
    "start_s3",
    "start_spark",
    "start_spark_connect",
]

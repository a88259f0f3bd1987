"""StreamHouse: S3-native, Kafka-compatible event streaming in Python."""

__version__ = "0.1.0"

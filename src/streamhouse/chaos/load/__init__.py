"""The clients of a chaos run. Each kind runs in processes of its own and writes a history of its own.

spec.py               what a client process is told
shape.py              what producers do: short lives, bursts, small and large records
process.py            the frame of a client process: starts, hears "drain" and the end of stdin, ends
clients.py            which clients are installed here, and the processes that run them
librdkafka.py         confluent-kafka: producers
librdkafka_groups.py  confluent-kafka: groups, the last read
aio.py                aiokafka: producers, groups, the last read
ChaosLoad.java        Apache Kafka's own client: the same; clients.py runs it with `java`
"""

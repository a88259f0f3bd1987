"""`streamhouse chaos`: real Kafka clients write and read while agents and stores fail, and a checker judges the log.

    options.py    what a run is told
    records.py    what is written: every record says who wrote it, its number, its place, and a checksum
    history.py    what clients were told, in append-only files
    load/         the clients: librdkafka, aiokafka and Java, each in processes of its own
    fleet/        agents, PostgreSQL and S3 behind proxies, and the faults
    checker/      compares the history with the log as a consumer reads it; shares no code with the engine
    report/       the verdict as text, JSON and HTML
    run.py        one run from start to report

docs/chaos.md explains how to run it and how to read its report.
"""

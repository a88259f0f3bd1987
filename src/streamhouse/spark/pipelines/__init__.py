"""SQL pipelines: topics → Spark SQL → a target, kept running and resumed exactly where the target stands.

    spec.py, parsing.py, yaml_file.py     what a pipeline is, and how people write it down (pure)
    catalog.py                            pipelines as definitions in the metadata store
    progress.py, checkpoints.py           which batch counts, and where a query goes on (pure)
    query.py, validation.py               from a definition to a streaming DataFrame
    target_*.py, postgres_*.py            where rows go, each batch once
    attempt.py, runner.py, reports.py     what runs them

Only query.py and what runs it need pyspark; psycopg is imported where it is used.
"""

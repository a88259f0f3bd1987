"""SQL pipelines: topics → Spark SQL → a target.

    spec.py, parsing.py, yaml_file.py     what a pipeline is, and how users write it (pure)
    service.py                            what the commands call (spark/definitions/ has what tables share)
    query.py, validation.py, start.py     from a definition to a streaming query
    target_*.py, postgres_*.py            where rows go, each batch once
    isolated.py                           pipelines with a Spark application of their own

Only query.py and its callers need pyspark. psycopg is imported where it is used.
"""

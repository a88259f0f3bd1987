-- What people have defined (tables, pipelines), and what runners say of it.

CREATE TABLE definitions (
    kind          TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    definition_id BLOB    NOT NULL,
    document      TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    wanted        TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    status        TEXT    NOT NULL,
    status_at     INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
);

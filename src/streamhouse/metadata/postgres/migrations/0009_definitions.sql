-- What people have defined (tables, pipelines), and what runners say of it.

CREATE TABLE definitions (
    kind          text    COLLATE "C" NOT NULL,
    name          text    COLLATE "C" NOT NULL,
    definition_id uuid    NOT NULL,
    document      text    NOT NULL,
    version       bigint  NOT NULL,
    wanted        text    NOT NULL,
    created_at    bigint  NOT NULL,
    updated_at    bigint  NOT NULL,
    status        text    NOT NULL,
    status_at     bigint  NOT NULL,
    PRIMARY KEY (kind, name)
);

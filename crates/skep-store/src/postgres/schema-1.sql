-- The same tables as in SQLite's schema 1, with the types of PostgreSQL. Texts compare by bytes
-- (`COLLATE "C"`), as everywhere in skep. Several nodes share this database: what lies on the disk
-- of one node names that node.

CREATE TABLE meta (key TEXT COLLATE "C" PRIMARY KEY, value TEXT NOT NULL);

-- Who acts for a node. A higher epoch fences off the holders of lower ones.
CREATE TABLE nodes (
    node TEXT COLLATE "C" PRIMARY KEY,
    holder TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    expires_us BIGINT NOT NULL
);

-- One row per change that was committed: it tells what became of a commit whose answer was lost.
CREATE TABLE operations (id TEXT COLLATE "C" PRIMARY KEY, at_us BIGINT NOT NULL);

-- Numbers without gaps, given in the order of commits; a sequence has neither property.
CREATE TABLE counters (name TEXT COLLATE "C" PRIMARY KEY, value BIGINT NOT NULL);
INSERT INTO counters (name, value) VALUES ('events', 0);

CREATE TABLE sandboxes (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT COLLATE "C" NOT NULL UNIQUE,
    name TEXT COLLATE "C" NOT NULL,
    project BYTEA NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL,
    node TEXT COLLATE "C" NOT NULL,
    lease_epoch BIGINT NOT NULL DEFAULT 0,
    updated_us BIGINT NOT NULL,
    value TEXT NOT NULL,
    sum BIGINT NOT NULL
);
-- A deleted sandbox frees its name.
CREATE UNIQUE INDEX sandboxes_name ON sandboxes (name) WHERE state <> 'deleted';
CREATE INDEX sandboxes_project ON sandboxes (project, seq);
CREATE INDEX sandboxes_node ON sandboxes (node, seq);

CREATE TABLE scope_locks (
    sandbox TEXT COLLATE "C" NOT NULL,
    node TEXT COLLATE "C" NOT NULL,
    project BYTEA NOT NULL,
    scope BYTEA NOT NULL,
    PRIMARY KEY (node, project, scope, sandbox)
);

CREATE TABLE execs (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT COLLATE "C" NOT NULL UNIQUE,
    sandbox TEXT COLLATE "C" NOT NULL,
    ended BOOLEAN NOT NULL,
    value TEXT NOT NULL,
    sum BIGINT NOT NULL
);
CREATE INDEX execs_sandbox ON execs (sandbox, seq);
CREATE INDEX execs_running ON execs (sandbox, seq) WHERE NOT ended;

CREATE TABLE approvals (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id TEXT COLLATE "C" NOT NULL UNIQUE,
    node TEXT COLLATE "C" NOT NULL,
    sandbox TEXT COLLATE "C" NOT NULL,
    project BYTEA NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    undo_kept BOOLEAN NOT NULL DEFAULT TRUE,
    at_us BIGINT NOT NULL,
    value TEXT NOT NULL,
    sum BIGINT NOT NULL
);
CREATE INDEX approvals_project ON approvals (node, project, seq);
CREATE TABLE approval_paths (
    path BYTEA NOT NULL,
    approval TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (path, approval)
);
CREATE INDEX approval_paths_approval ON approval_paths (approval);

CREATE TABLE snapshots (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node TEXT COLLATE "C" NOT NULL,
    sandbox TEXT COLLATE "C" NOT NULL,
    label TEXT COLLATE "C" NOT NULL,
    value TEXT NOT NULL,
    sum BIGINT NOT NULL,
    UNIQUE (sandbox, label)
);
CREATE TABLE templates (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    value TEXT NOT NULL,
    sum BIGINT NOT NULL,
    UNIQUE (node, name)
);
-- Who stands on a layer: a sandbox, a snapshot or a template.
CREATE TABLE layer_refs (
    node TEXT COLLATE "C" NOT NULL,
    layer TEXT COLLATE "C" NOT NULL,
    holder TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (node, holder, layer)
);

CREATE TABLE rejections (
    seq BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    sandbox TEXT COLLATE "C" NOT NULL,
    value TEXT NOT NULL,
    sum BIGINT NOT NULL
);
CREATE INDEX rejections_sandbox ON rejections (sandbox, seq);

CREATE TABLE events (
    seq BIGINT PRIMARY KEY,
    at_us BIGINT NOT NULL,
    at TEXT NOT NULL,
    kind TEXT NOT NULL,
    sandbox TEXT COLLATE "C",
    exec TEXT COLLATE "C",
    value TEXT NOT NULL,
    sum BIGINT NOT NULL
);
CREATE INDEX events_sandbox ON events (sandbox, seq);

-- A key is a promise of the node that took it: only there can its maker be looked for.
CREATE TABLE idempotency_keys (
    node TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    body TEXT NOT NULL,
    result TEXT,
    sum BIGINT,
    expires_us BIGINT NOT NULL,
    PRIMARY KEY (node, key)
);

-- Every table keeps its value whole as JSON (`value`) with a checksum (`sum`), and beside it only
-- the columns something is searched or ordered by. `seq` is the order of insertion; times in
-- microseconds are for comparing, the text in the value is what is shown.

CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE sandboxes (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    project BLOB NOT NULL,
    state TEXT NOT NULL,
    version INTEGER NOT NULL,
    node TEXT NOT NULL,
    lease_epoch INTEGER NOT NULL DEFAULT 0,
    updated_us INTEGER NOT NULL,
    value TEXT NOT NULL,
    sum INTEGER NOT NULL
);
-- A deleted sandbox frees its name.
CREATE UNIQUE INDEX sandboxes_name ON sandboxes (name) WHERE state <> 'deleted';
CREATE INDEX sandboxes_project ON sandboxes (project, seq);

CREATE TABLE scope_locks (
    sandbox TEXT NOT NULL,
    project BLOB NOT NULL,
    scope BLOB NOT NULL,
    PRIMARY KEY (project, scope, sandbox)
) WITHOUT ROWID;

CREATE TABLE execs (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    sandbox TEXT NOT NULL,
    ended INTEGER NOT NULL,
    value TEXT NOT NULL,
    sum INTEGER NOT NULL
);
CREATE INDEX execs_sandbox ON execs (sandbox, seq);
CREATE INDEX execs_running ON execs (sandbox, seq) WHERE ended = 0;

CREATE TABLE approvals (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    sandbox TEXT NOT NULL,
    project BLOB NOT NULL,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    undo_kept INTEGER NOT NULL DEFAULT 1,
    at_us INTEGER NOT NULL,
    value TEXT NOT NULL,
    sum INTEGER NOT NULL
);
CREATE INDEX approvals_project ON approvals (project, seq);
CREATE TABLE approval_paths (
    path BLOB NOT NULL,
    approval TEXT NOT NULL,
    PRIMARY KEY (path, approval)
) WITHOUT ROWID;
CREATE INDEX approval_paths_approval ON approval_paths (approval);

CREATE TABLE snapshots (
    seq INTEGER PRIMARY KEY,
    sandbox TEXT NOT NULL,
    label TEXT NOT NULL,
    value TEXT NOT NULL,
    sum INTEGER NOT NULL,
    UNIQUE (sandbox, label)
);
CREATE TABLE templates (
    seq INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    value TEXT NOT NULL,
    sum INTEGER NOT NULL
);
-- Who stands on a layer: a sandbox, a snapshot or a template.
CREATE TABLE layer_refs (
    layer TEXT NOT NULL,
    holder TEXT NOT NULL,
    PRIMARY KEY (holder, layer)
) WITHOUT ROWID;

CREATE TABLE rejections (
    seq INTEGER PRIMARY KEY,
    sandbox TEXT NOT NULL,
    value TEXT NOT NULL,
    sum INTEGER NOT NULL
);
CREATE INDEX rejections_sandbox ON rejections (sandbox, seq);

-- AUTOINCREMENT: a sequence number is never given twice, also after pruning.
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at_us INTEGER NOT NULL,
    at TEXT NOT NULL,
    kind TEXT NOT NULL,
    sandbox TEXT,
    exec TEXT,
    value TEXT NOT NULL,
    sum INTEGER NOT NULL
);
CREATE INDEX events_sandbox ON events (sandbox, seq);

CREATE TABLE idempotency_keys (
    key TEXT PRIMARY KEY,
    body TEXT NOT NULL,
    result TEXT,
    sum INTEGER,
    expires_us INTEGER NOT NULL
) WITHOUT ROWID;

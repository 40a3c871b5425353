-- One row. `last`: the last version or log position that was given in this file. `format`: the version of the tables.
CREATE TABLE counter (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    last INTEGER NOT NULL,
    format INTEGER NOT NULL,
    opened INTEGER NOT NULL
) STRICT;
INSERT INTO counter (id, last, format, opened) VALUES (1, 0, 1, 0);

-- The scopes of the other tables.
CREATE TABLE scopes (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

-- The journals. Keys and values are opaque bytes.
CREATE TABLE durable (
    scope INTEGER NOT NULL,
    key BLOB NOT NULL,
    version INTEGER NOT NULL,
    due INTEGER,
    bucket INTEGER,
    place INTEGER,
    value BLOB NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX durable_due ON durable (scope, due, key) WHERE due IS NOT NULL;
CREATE INDEX durable_list ON durable (scope, bucket, place, key) WHERE bucket IS NOT NULL;

-- What is known of a chat, as JSON.
CREATE TABLE chats (
    scope INTEGER NOT NULL,
    chat TEXT NOT NULL,
    state TEXT NOT NULL,
    PRIMARY KEY (scope, chat)
) STRICT, WITHOUT ROWID;

-- Named values of users, as JSON.
CREATE TABLE user_values (
    scope INTEGER NOT NULL,
    user TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (scope, user, name)
) STRICT, WITHOUT ROWID;

-- Where conversations stand: `body` is the checkpoint as JSON, in the layout that `format` numbers. A cleared one has no
-- body; its row is kept, so that revisions go on where they were.
CREATE TABLE checkpoints (
    scope INTEGER NOT NULL,
    conversation TEXT NOT NULL,
    chat TEXT NOT NULL,
    participant TEXT,
    revision INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    session TEXT NOT NULL,
    deadline INTEGER,
    format INTEGER NOT NULL,
    body TEXT,
    PRIMARY KEY (scope, conversation)
) STRICT, WITHOUT ROWID;
CREATE INDEX checkpoints_due ON checkpoints (scope, deadline, chat, participant) WHERE deadline IS NOT NULL;

-- The message log. `at` is in milliseconds since 1970, `direction` is `in` or `out`.
CREATE TABLE log (
    scope INTEGER NOT NULL,
    chat TEXT NOT NULL,
    position INTEGER NOT NULL,
    direction TEXT NOT NULL,
    at INTEGER NOT NULL,
    message TEXT NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (scope, chat, position)
) STRICT, WITHOUT ROWID;

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

-- Rows are kept in the order in which they were made and found through an index: chats that write at the same time then
-- share pages, however far apart their keys are. (WITHOUT ROWID halved the throughput of many chats.)

-- The journals. Keys and values are opaque bytes.
CREATE TABLE durable (
    scope INTEGER NOT NULL,
    key BLOB NOT NULL,
    version INTEGER NOT NULL,
    due INTEGER,
    bucket INTEGER,
    place INTEGER,
    value BLOB NOT NULL,
    UNIQUE (scope, key)
) STRICT;
CREATE INDEX durable_due ON durable (scope, due, key) WHERE due IS NOT NULL;
CREATE INDEX durable_list ON durable (scope, bucket, place, key) WHERE bucket IS NOT NULL;

-- What is known of a chat, as JSON.
CREATE TABLE chats (
    scope INTEGER NOT NULL,
    chat TEXT NOT NULL,
    state TEXT NOT NULL,
    UNIQUE (scope, chat)
) STRICT;

-- Named values of users, as JSON.
CREATE TABLE user_values (
    scope INTEGER NOT NULL,
    user TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    UNIQUE (scope, user, name)
) STRICT;

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
    deadline INTEGER, -- Checkpoint::due
    format INTEGER NOT NULL,
    body TEXT,
    UNIQUE (scope, conversation)
) STRICT;
CREATE INDEX checkpoints_due ON checkpoints (scope, deadline, chat, participant) WHERE deadline IS NOT NULL;

-- The message log. `at` is in milliseconds since 1970, `direction` is `in` or `out`.
CREATE TABLE log (
    position INTEGER PRIMARY KEY,
    scope INTEGER NOT NULL,
    chat TEXT NOT NULL,
    direction TEXT NOT NULL,
    at INTEGER NOT NULL,
    message TEXT NOT NULL,
    text TEXT NOT NULL
) STRICT;
CREATE INDEX log_of_chat ON log (scope, chat, position);

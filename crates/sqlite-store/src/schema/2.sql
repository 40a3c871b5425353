-- Keys that end in a number (events of a channel that counts them, and what answers them) are found by that number first, so
-- that those of one time share pages, whatever their chats: `near` of keys.rs. The others have 0 there, and are found as before.
DROP INDEX durable_due;
DROP INDEX durable_list;
ALTER TABLE durable RENAME TO durable_1;
CREATE TABLE durable (
    scope INTEGER NOT NULL,
    key BLOB NOT NULL,
    version INTEGER NOT NULL,
    due INTEGER,
    bucket INTEGER,
    place INTEGER,
    value BLOB NOT NULL,
    near INTEGER NOT NULL,
    UNIQUE (scope, near, key)
) STRICT;
INSERT INTO durable (rowid, scope, key, version, due, bucket, place, value, near)
    SELECT rowid, scope, key, version, due, bucket, place, value,
        CASE WHEN instr(key, x'00') = 0 AND last GLOB '[0-9]*' THEN CAST(last AS INTEGER) ELSE 0 END
    FROM (
        -- The text behind the last slash: without what is left when all but slashes is cut from the end.
        SELECT *, CASE WHEN instr(text, '/') THEN substr(text, length(rtrim(text, replace(text, '/', ''))) + 1) END AS last
        FROM (SELECT *, rowid, CAST(key AS TEXT) AS text FROM durable_1)
    )
    ORDER BY rowid;
DROP TABLE durable_1;
CREATE INDEX durable_due ON durable (scope, due, key) WHERE due IS NOT NULL;
CREATE INDEX durable_list ON durable (scope, bucket, place, key) WHERE bucket IS NOT NULL;

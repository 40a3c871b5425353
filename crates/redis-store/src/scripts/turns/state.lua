-- Before every script of the turns: what the bucket knows.
--
-- KEYS[1]  the bucket's state: e epoch, b when it began, clocks, s:ID the end of a session's lease, below 0 if the session was
--          closed, n:ID the number and the mark of its last heartbeat, ended the last end of a session that is forgotten,
--          swept the one after which no queue has its tickets any more. The clocks are four doubles: the largest number, the
--          wall clock and the lease clock when they were last written, and until when nobody is granted anything
-- ARGV[1]  the microseconds that the caller saw pass since its last answered request that wrote the clocks, or ''
-- ARGV[2]  a session, of which the lease is read (the scripts of locks have a token there, which is none)
--
-- An answer is one text, whose parts have | between them: for each that is a list the server sets aside 16 KiB, which it counts as a
-- backlog of a connection that hears pushes. It begins with the epoch, '' for none.

local state = redis.call('HMGET', KEYS[1], 'e', 'clocks', 's:' .. ARGV[2])
local epoch, lease = state[1] or '', (state[3] or 0) + 0
local last, before, now, grace = 0, nil, nil, 0
if state[2] then last, before, now, grace = struct.unpack('<dddd', state[2]) end

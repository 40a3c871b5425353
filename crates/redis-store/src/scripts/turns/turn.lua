-- Before the scripts of a queue.
--
-- KEYS[2]  who has the turn: the tickets behind it, its number, SESSION:SEQ and the previous holder with its mark, if known, each
--          followed by a space but the last; while there is no ticket, the previous holder alone, for a time. The mark is ! if it
--          gave back what it held, ? if it abandoned it or ended before
-- KEYS[3]  the tickets behind it, SESSION:SEQ by number
-- ARGV[2], ARGV[3]  the session and the sequence number of the caller's ticket

local own = ARGV[2] .. ':' .. ARGV[3]
local turn = redis.call('GET', KEYS[2])

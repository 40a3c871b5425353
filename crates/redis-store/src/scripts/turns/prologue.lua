-- Before every script of the turns: what the bucket knows, and the time.
--
-- KEYS[1]  the bucket's state: e epoch, b when it began, clocks, s:ID the end of a session's lease, below 0 if the session was
--          closed, n:ID the number and the mark of its last heartbeat, ended the last end of a session that is forgotten,
--          swept the one after which no queue has its tickets any more. The clocks are four doubles: the largest number, the
--          wall clock and the lease clock when they were last written, and until when nobody is granted anything
-- ARGV[1]  the microseconds that the caller saw pass since its last answered request that wrote the clocks, or ''
-- ARGV[2]  a session, of which the lease is read (the scripts of locks have a token there, which is none)
--
-- All times are microseconds. The lease clock stands still while the wall clock is set back, and goes on by no more than
-- the caller saw pass when it is set forward.
--
-- An answer is one text, whose parts have | between them: for each that is a list the server sets aside 16 KiB, which it counts as a
-- backlog of a connection that hears pushes. It begins with the epoch, '' for none.

local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local state = redis.call('HMGET', KEYS[1], 'e', 'clocks', 's:' .. ARGV[2])
local epoch, lease = state[1] or '', tonumber(state[3] or 0)
local last, now, grace = 0, wall, 0
if state[2] then
  local before
  last, before, now, grace = struct.unpack('<dddd', state[2])
  now = now + math.max(math.min(wall - before, tonumber(ARGV[1]) or math.huge), 0)
end

-- A double as text, to the last digit. Most often it is the time, whose digits are there.
local function digits(number)
  if number == wall then return time[1] .. string.sub('00000' .. time[2], -6) end
  return string.format('%.0f', number)
end

local function save(...)
  redis.call('HSET', KEYS[1], 'clocks', struct.pack('<dddd', last, wall, now, grace), ...)
end

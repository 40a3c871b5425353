-- Before every script of the turns: what the bucket knows, and the time.
--
-- KEYS[1]  the bucket's state: e epoch, b when it began, g until when nobody is granted anything, c the largest number,
--          t the wall clock and l the lease clock at the last request, s:ID the end of a session's lease,
--          below 0 if the session was closed, n:ID the number and the mark of its last heartbeat, ended the last end of
--          a session that is forgotten, swept the one after which no queue has its tickets any more
-- ARGV[1]  the microseconds that the caller saw pass since its last answered request, or ''
--
-- All times are microseconds. The lease clock stands still while the wall clock is set back, and goes on by no more than
-- the caller saw pass when it is set forward. Every answer begins with the epoch, '' for none.

local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
local state = redis.call('HMGET', KEYS[1], 'e', 'c', 't', 'l', 'g', 's:' .. ARGV[2])
local epoch = state[1] or ''
local last = tonumber(state[2] or 0)
local grace = tonumber(state[5] or 0)
local now = wall
if state[3] then
  now = tonumber(state[4]) + math.min(math.max(wall - state[3], 0), tonumber(ARGV[1]) or math.huge)
end

-- A double as text, to the last digit. Most often it is the time, whose digits are there.
local wall_digits = time[1] .. string.sub('00000' .. time[2], -6)
local function digits(number)
  if number == wall then return wall_digits end
  return string.format('%.0f', number)
end

local function save(...)
  redis.call('HSET', KEYS[1], 'c', digits(last), 't', digits(wall), 'l', digits(now), ...)
end

-- The end of a session's lease, 0 for none. That of the caller has been read already.
local function lease_of(session)
  local lease = state[6]
  if session ~= ARGV[2] then lease = redis.call('HGET', KEYS[1], 's:' .. session) end
  return tonumber(lease or 0)
end

local function remaining(session)
  return math.max(lease_of(session) - now, 0)
end

local function alive(session)
  return remaining(session) > 0
end

-- Whether a turn of the session that is done now is given back, not left behind.
local function gives_back(session)
  local lease = lease_of(session)
  return lease < 0 or lease > now
end

-- So that no delayed request revives a dead session, it is remembered for ten minutes. Answers with when one ended by itself
-- after the end for which the queues were swept last, '' for none.
local function forget_dead()
  local fields = redis.call('HGETALL', KEYS[1])
  local ended, forgotten, swept = 0, 0, 0
  for i = 1, #fields, 2 do
    local kind, value = string.sub(fields[i], 1, 2), tonumber(fields[i + 1])
    if kind == 's:' and value <= now then
      ended = math.max(ended, value)
      if math.abs(value) + 600000000 <= now then
        forgotten = math.max(forgotten, value)
        redis.call('HDEL', KEYS[1], fields[i], 'n:' .. string.sub(fields[i], 3))
      end
    elseif fields[i] == 'ended' then
      ended = math.max(ended, value)
    elseif fields[i] == 'swept' then
      swept = value
    end
  end
  if forgotten > swept then redis.call('HSET', KEYS[1], 'ended', digits(forgotten)) end
  return ended > swept and digits(ended) or ''
end

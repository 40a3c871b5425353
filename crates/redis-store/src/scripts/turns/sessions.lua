-- Before the scripts that ask which sessions live.

-- The end of a session's lease, 0 for none. That of the caller has been read already.
local function lease_of(session)
  if session == ARGV[2] then return lease end
  return tonumber(redis.call('HGET', KEYS[1], 's:' .. session) or 0)
end

local function remaining(session)
  return math.max(lease_of(session) - now, 0)
end

local function alive(session)
  return remaining(session) > 0
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

-- Before the scripts of a queue.
--
-- KEYS[2]  the queue: SESSION:SEQ by number, and with number 0 the previous holder: !SESSION if it gave back what it held,
--          ?SESSION if it abandoned it or ended before. It expires only while it has no ticket.

local function session_of(member)
  return string.match(member, '^(.*):')
end

-- The first ticket, its number, the previous holder with its mark, and whether there is no other ticket.
local function head()
  local first = redis.call('ZRANGE', KEYS[2], 0, 2, 'WITHSCORES')
  if first[1] and string.find(first[1], '^[!?]') then
    return first[3], first[4], first[1], not first[5]
  end
  return first[1], first[2], nil, not first[3]
end

-- Removes the head, which becomes the previous holder.
local function pass(member, previous, given_back)
  local mark = (given_back and '!' or '?') .. session_of(member)
  if mark ~= previous then
    redis.call('ZADD', KEYS[2], 0, mark)
    if previous then redis.call('ZREM', KEYS[2], previous) end
  end
  redis.call('ZREM', KEYS[2], member)
end

-- Removes the dead at the head, some at most. Whether there were any, and then what head() gives.
local function bury()
  for buried = 0, 255 do
    local member, number, previous = head()
    if not member or alive(session_of(member)) then
      return buried > 0, member, number, previous
    end
    pass(member, previous, false)
  end
  return true, head()
end

-- How many tickets of the dead are in a queue, as far as one looks.
local function count_dead(previous)
  local first, count, known = previous and 1 or 0, 0, {}
  for _, ticket in ipairs(redis.call('ZRANGE', KEYS[2], first, first + 1023)) do
    local session = session_of(ticket)
    if known[session] == nil then known[session] = alive(session) end
    if not known[session] then count = count + 1 end
  end
  return count
end

-- An error must not end a script that has written; whoever misses a push asks.
local function push(kind, member, number, previous)
  local tag = string.sub(KEYS[1], 1, -6)
  local key = string.sub(KEYS[2], #tag + 7)
  -- The channels of the replicas are those of all buckets.
  local wake = string.match(tag, '^(.*:)%d+}:$') .. 'wake}:'
  local session, seq = string.match(member, '^(.*):(%d+)$')
  local text = table.concat({kind, epoch, session, seq, digits(number), previous or '', key}, '|')
  redis.pcall('PUBLISH', wake .. string.match(session, '^[^.]*'), text)
end

local function tell(member, number, previous)
  if member and now >= grace and alive(session_of(member)) then
    push('g', member, number, previous)
  end
end

-- Where a ticket stands that is there.
local function standing(own, member, number, previous)
  if own ~= member then
    local holder = session_of(member)
    return {epoch, 'waiting', digits(redis.call('ZSCORE', KEYS[2], own)), holder, digits(remaining(holder))}
  end
  if now < grace then
    return {epoch, 'waiting', digits(number), session_of(own), digits(grace - now)}
  end
  return {epoch, 'granted', digits(number), previous or ''}
end

-- Before what is done while others have tickets.

-- The first ticket, its number, the previous holder with its mark, and how many tickets are behind.
local member, number, previous
local behind = 0
if turn and string.find(turn, '^[!?]') then
  previous = turn
elseif turn then
  behind, number, member, previous = string.match(turn, '^(%d+) (%d+) (%S+) (.*)$')
  if not member then return redis.error_reply('DAMAGED a turn is of no ticket') end
  behind = tonumber(behind)
end

local function session_of(ticket)
  return string.match(ticket, '^(.*):')
end

local function is_behind(ticket)
  return behind > 0 and redis.call('ZSCORE', KEYS[3], ticket)
end

-- Takes the first ticket away. Its session is the previous holder from now on if there is a mark.
local function pass(marked)
  previous = marked or previous
  local following = behind > 0 and redis.call('ZPOPMIN', KEYS[3]) or {}
  member, number = following[1], following[2] and digits(following[2])
  behind = member and behind - 1 or 0
end

-- Writes what has become of the queue. One without tickets is remembered for so many milliseconds.
local function keep(idle)
  if member then
    redis.call('SET', KEYS[2], behind .. ' ' .. number .. ' ' .. member .. ' ' .. (previous or ''))
  elseif previous and previous ~= '' then
    redis.call('SET', KEYS[2], previous, 'PX', idle)
  else
    redis.call('DEL', KEYS[2])
  end
end

-- Removes the dead at the head, some at most. Whether there were any.
local function bury()
  for buried = 0, 255 do
    if not member or alive(session_of(member)) then return buried > 0 end
    pass('?' .. session_of(member))
  end
  return true
end

-- How many tickets of the dead are in a queue, as far as one looks.
local function count_dead()
  local known, count = {}, alive(session_of(member)) and 0 or 1
  for _, ticket in ipairs(redis.call('ZRANGE', KEYS[3], 0, 1022)) do
    local session = session_of(ticket)
    if known[session] == nil then known[session] = alive(session) end
    if not known[session] then count = count + 1 end
  end
  return count
end

-- An error must not end a script that has written; whoever misses a push asks.
local function push(kind)
  local tag = string.sub(KEYS[1], 1, -6)
  local key = string.sub(KEYS[2], #tag + 7)
  -- The channels of the replicas are those of all buckets.
  local wake = string.match(tag, '^(.*:)%d+}:$') .. 'wake}:'
  local session, seq = string.match(member, '^(.*):(%d+)$')
  local text = table.concat({kind, epoch, session, seq, number, previous or '', key}, '|')
  redis.pcall('PUBLISH', wake .. string.match(session, '^[^.]*'), text)
end

local function tell()
  if member and now >= grace and alive(session_of(member)) then push('g') end
end

-- Where the caller's ticket stands, which is there.
local function standing()
  if own ~= member then
    local holder, place = session_of(member), digits(redis.call('ZSCORE', KEYS[3], own))
    return epoch .. '|waiting|' .. place .. '|' .. holder .. '|' .. digits(remaining(holder))
  end
  if now < grace then
    return epoch .. '|waiting|' .. number .. '|' .. ARGV[2] .. '|' .. digits(grace - now)
  end
  return epoch .. '|granted|' .. number .. '|' .. (previous or '')
end

-- Applies writes of the journals, each under its own expectation, those of one entry in their order.
--
-- KEYS  the entries, what is due, what is listed, the clock
-- ARGV  for each write: the entry's key, the version that must be there ('' for none), and what to store behind the
--       new version ('' to remove the entry)
-- Answers with one text for each write: '+' and the version that was written or removed, or '-' and the version that
-- is there instead.
--
-- An entry is its version in 16 digits, a digit that says which places follow (1 due, 2 list, 3 both), the places, and
-- the value. Versions are microseconds of the server's clock, or one more than the last: numbers that a double holds.

local CHUNK = 1000
local LARGEST = 9007199254740991

local function places(entry)
  local which = entry and tonumber(string.sub(entry, 17, 17)) or 0
  local due, list = false, false
  local at = 18
  if which % 2 == 1 then
    due = string.sub(entry, at, at + 7)
    at = at + 8
  end
  if which >= 2 then
    list = string.sub(entry, at, at + 8)
  end
  return due, list
end

local function in_chunks(list, run)
  for first = 1, #list, CHUNK do
    run(unpack(list, first, math.min(first + CHUNK - 1, #list)))
  end
end

-- What is there, once for each entry. Everything that can be refused is refused here, before the first write.
local names, before, after = {}, {}, {}
for i = 1, #ARGV, 3 do
  if after[ARGV[i]] == nil then
    after[ARGV[i]] = false
    names[#names + 1] = ARGV[i]
  end
end
local read = 0
in_chunks(names, function(...)
  local found = redis.call('HMGET', KEYS[1], ...)
  for i = 1, select('#', ...) do
    local name = names[read + i]
    before[name] = found[i]
    after[name] = found[i]
    if found[i] and not string.find(found[i], '^%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d[0123]') then
      before[name] = nil
    end
  end
  read = read + select('#', ...)
end)
for _, name in ipairs(names) do
  if before[name] == nil then
    return redis.error_reply('DAMAGED an entry has no version')
  end
end
redis.call('ZCARD', KEYS[2])
redis.call('ZCARD', KEYS[3])
local last = tonumber(redis.call('GET', KEYS[4]) or '0')
if not last then
  return redis.error_reply('DAMAGED the clock is no number')
end
local time = redis.call('TIME')
local version = math.max(last, time[1] * 1000000 + time[2] - 1)
if version + #ARGV > LARGEST then
  return redis.error_reply('DAMAGED the clock is too far in the future')
end

local outcomes, wrote = {}, false
for i = 1, #ARGV, 3 do
  local name, expected, stored = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local found = after[name] and string.sub(after[name], 1, 16) or ''
  if found ~= expected then
    outcomes[#outcomes + 1] = '-' .. found
  elseif stored == '' then
    after[name] = false
    outcomes[#outcomes + 1] = '+' .. found
  else
    version = version + 1
    wrote = true
    local own = string.format('%016.0f', version)
    after[name] = own .. stored
    outcomes[#outcomes + 1] = '+' .. own
  end
end

local puts, removed = {}, {}
local due_in, due_out, list_in, list_out = {}, {}, {}, {}
local function move(into, out, name, old, new)
  if old == new then return end
  if old then out[#out + 1] = old .. name end
  if new then
    into[#into + 1] = '0'
    into[#into + 1] = new .. name
  end
end
for _, name in ipairs(names) do
  local old, new = before[name], after[name]
  if old ~= new then
    if new then
      puts[#puts + 1] = name
      puts[#puts + 1] = new
    else
      removed[#removed + 1] = name
    end
    local old_due, old_list = places(old)
    local new_due, new_list = places(new)
    move(due_in, due_out, name, old_due, new_due)
    move(list_in, list_out, name, old_list, new_list)
  end
end

-- First what a server without memory refuses, so that it refuses the whole.
in_chunks(puts, function(...) redis.call('HSET', KEYS[1], ...) end)
if wrote then
  redis.call('SET', KEYS[4], string.format('%.0f', version))
end
in_chunks(removed, function(...) redis.call('HDEL', KEYS[1], ...) end)
in_chunks(due_out, function(...) redis.call('ZREM', KEYS[2], ...) end)
in_chunks(due_in, function(...) redis.call('ZADD', KEYS[2], ...) end)
in_chunks(list_out, function(...) redis.call('ZREM', KEYS[3], ...) end)
in_chunks(list_in, function(...) redis.call('ZADD', KEYS[3], ...) end)
return outcomes

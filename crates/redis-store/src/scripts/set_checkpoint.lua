-- Writes a checkpoint if its revision is the expected one and the turn is not older than the one that wrote it.
--
-- KEYS  the checkpoint, what is due, the bounds of the scope
-- ARGV  the expected revision ('' for no checkpoint), the fence, the session, the revision that follows the expected
--       one, the place among what is due with the conversation ('' if it is never due), the format, the body
-- Answers with the revision, or with nothing if the write is lost.
--
-- Revisions and fences are texts of 20 digits, which are compared as texts: a double cannot hold them.

local expected, fence, session, revision, due = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local row = redis.call('HMGET', KEYS[1], 'revision', 'fence', 'session', 'due')
local old_due = row[4] or ''
redis.call('ZCARD', KEYS[2])
local bounds = redis.call('HMGET', KEYS[3], 'fence', 'cleared')

local function successor(digits)
  local high, low = tonumber(string.sub(digits, 1, 10)), tonumber(string.sub(digits, 11)) + 1
  if low == 10000000000 then
    high, low = high + 1, 0
  end
  return string.format('%010.0f%010.0f', high, low)
end

if expected == '' then
  if row[1] then return false end
  revision = fence
  if bounds[2] and bounds[2] >= fence then
    revision = successor(bounds[2])
  end
else
  if row[1] ~= expected then return false end
  if not (fence > row[2] or (fence == row[2] and session == row[3])) then return false end
end

redis.call('HSET', KEYS[1], 'revision', revision, 'fence', fence, 'session', session, 'due', due, 'format', ARGV[6],
  'body', ARGV[7])
if old_due ~= due then
  if old_due ~= '' then redis.call('ZREM', KEYS[2], old_due) end
  if due ~= '' then redis.call('ZADD', KEYS[2], 0, due) end
end
if not bounds[1] or bounds[1] < fence then
  redis.call('HSET', KEYS[3], 'fence', fence)
end
return revision

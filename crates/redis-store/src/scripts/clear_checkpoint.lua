-- Removes a checkpoint under the conditions of set_checkpoint.lua.
--
-- KEYS  the checkpoint, what is due, the bounds of the scope
-- ARGV  the expected revision, the fence, the session
-- Answers with 1, or with nothing if the write is lost.
--
-- Nothing of the conversation stays: the largest revision that was ever removed in the scope is remembered once, and
-- new checkpoints begin above it.

local row = redis.call('HMGET', KEYS[1], 'revision', 'fence', 'session', 'due')
redis.call('ZCARD', KEYS[2])
local cleared = redis.call('HMGET', KEYS[3], 'cleared')[1]
local fence = ARGV[2]
if row[1] ~= ARGV[1] then return false end
if not (fence > row[2] or (fence == row[2] and ARGV[3] == row[3])) then return false end

redis.call('DEL', KEYS[1])
if row[4] and row[4] ~= '' then redis.call('ZREM', KEYS[2], row[4]) end
if not cleared or cleared < row[1] then
  redis.call('HSET', KEYS[3], 'cleared', row[1])
end
return 1

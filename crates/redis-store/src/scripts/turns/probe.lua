-- Tries what the scripts of the turns use beyond those of the store.
--
-- KEYS  a hash, an index and a text that nobody uses
-- ARGV  a channel that nobody listens to
-- Answers with the names of commands that failed, each followed by the error.

local answer = {}
local function try(...)
  local result = redis.pcall(...)
  if type(result) == 'table' and result.err then
    answer[#answer + 1] = (...)
    answer[#answer + 1] = result.err
  end
end
try('DEL', KEYS[1], KEYS[2], KEYS[3])
try('HEXISTS', KEYS[1], 'field')
try('ZADD', KEYS[2], '0', 'member')
try('ZSCORE', KEYS[2], 'member')
try('ZRANGE', KEYS[2], '0', '1')
try('ZPOPMIN', KEYS[2])
try('ZREMRANGEBYRANK', KEYS[2], '0', '-1')
try('MSETNX', KEYS[3], '')
try('MSET', KEYS[3], '')
try('MGET', KEYS[3])
try('PUBLISH', ARGV[1], '')
try('DEL', KEYS[1], KEYS[2], KEYS[3])
return answer

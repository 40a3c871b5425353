-- Tries every command that the other scripts use, so that a user who lacks one is refused before anything is written.
--
-- KEYS  four keys that nobody uses: a hash, an index, a number and a log
-- ARGV  the texts of the other scripts
-- Answers with the names of commands that failed, each followed by the error, then '', then the SHA-1 of each text.

local hash, index, number, log = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local answer = {}
local function try(...)
  local result = redis.pcall(...)
  if type(result) == 'table' and result.err then
    answer[#answer + 1] = (...)
    answer[#answer + 1] = result.err
  end
end
try('DEL', hash, index, number, log)
try('EXISTS', hash)
try('TIME')
try('SET', number, '1')
try('GET', number)
try('HSET', hash, 'field', 'value')
try('HGET', hash, 'field')
try('HMGET', hash, 'field')
try('HGETALL', hash)
try('HDEL', hash, 'field')
try('ZADD', index, '0', 'member')
try('ZCARD', index)
try('ZRANGEBYLEX', index, '-', '+', 'LIMIT', '0', '1')
try('ZREM', index, 'member')
try('XADD', log, 'MAXLEN', '~', '10', '1-0', 'field', 'value')
try('XLEN', log)
try('XREVRANGE', log, '(2-0', '-', 'COUNT', '1')
try('DEL', hash, index, number, log)
answer[#answer + 1] = ''
for _, text in ipairs(ARGV) do
  answer[#answer + 1] = redis.sha1hex(text)
end
return answer

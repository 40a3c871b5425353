-- Appends to the message logs of chats.
--
-- KEYS  the clock, and the logs
-- ARGV  how many entries a log keeps at least (0 for all), and for each entry the number of its log among KEYS, who
--       wrote it, when, the id and the text
--
-- Positions come from the same clock as the versions of the journals: see commit.lua.

local LARGEST = 9007199254740991
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
if not last then
  return redis.error_reply('DAMAGED the clock is no number')
end
for i = 2, #KEYS do
  redis.call('XLEN', KEYS[i])
end
local time = redis.call('TIME')
local position = math.max(last, time[1] * 1000000 + time[2] - 1)
if position + #ARGV > LARGEST then
  return redis.error_reply('DAMAGED the clock is too far in the future')
end

for i = 2, #ARGV, 5 do
  position = position + 1
  local id = string.format('%.0f-0', position)
  local log = KEYS[tonumber(ARGV[i])]
  if ARGV[1] == '0' then
    redis.call('XADD', log, id, 'from', ARGV[i + 1], 'at', ARGV[i + 2], 'id', ARGV[i + 3], 'text', ARGV[i + 4])
  else
    redis.call('XADD', log, 'MAXLEN', '~', ARGV[1], id, 'from', ARGV[i + 1], 'at', ARGV[i + 2], 'id', ARGV[i + 3],
      'text', ARGV[i + 4])
  end
end
redis.call('SET', KEYS[1], string.format('%.0f', position))
return 1

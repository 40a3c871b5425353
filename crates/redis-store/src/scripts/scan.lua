-- Reads entries of the journals in the order of an index.
--
-- KEYS  the entries, the index
-- ARGV  where to begin and end (as ZRANGEBYLEX takes it), how many at most, the length of a place, and after how many
--       bytes to stop
-- Answers with 1 if it stopped before the last place it found and 0 if not, the last place it looked at ('' if there is
-- none), and for each entry its key and what is stored.

local members = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
local behind_place = ARGV[4] + 1
local enough = tonumber(ARGV[5])

local answer, bytes, last = { 0, '' }, 0, 0
while last < #members and bytes < enough do
  last = last + 1
  local name = string.sub(members[last], behind_place)
  local found = redis.call('HGET', KEYS[1], name)
  if found then
    answer[#answer + 1] = name
    answer[#answer + 1] = found
    bytes = bytes + #found
  end
end
if last > 0 then
  answer[2] = members[last]
end
if last < #members then
  answer[1] = 1
end
return answer

-- Most often the only ticket goes. This is what all that follows comes to then, before its functions are made, which costs as
-- much as the commands. It writes no clocks: nothing is granted, and nobody dies of it.
local first, previous = string.match(turn or '', '^0 %d+ (%S+) (.*)$')
if first == own then
  if ARGV[5] ~= 'unused' then previous = mark(ARGV[5]) end
  if previous == '' then
    redis.call('DEL', KEYS[2])
  else
    redis.call('SET', KEYS[2], previous, 'PX', ARGV[4])
  end
  return epoch .. '|left'
end

-- Most often nobody has a ticket. This is what all that follows comes to then, before its functions are made, which costs as
-- much as the commands.
if lease > now and now >= grace and (not turn or string.find(turn, '^[!?]')) then
  last = math.max(last, ARGV[7] + 0)
  last = math.max(last + 1, wall)
  -- Most often it is the time, whose digits are there.
  local number = last == wall and #time[2] == 6 and time[1] .. time[2] or string.format('%.0f', last)
  local previous = turn or ''
  redis.call('SET', KEYS[2], '0 ' .. number .. ' ' .. own .. ' ' .. previous)
  redis.call('HSET', KEYS[1], 'clocks', struct.pack('<dddd', last, wall, now, grace))
  return epoch .. '|granted|' .. number .. '|' .. previous
end

-- Most often nobody has a ticket. This is what all that follows comes to then, before its functions are made, which costs as
-- much as the commands.
if lease > now and now >= grace and (not turn or string.find(turn, '^[!?]')) then
  last = math.max(last, tonumber(ARGV[7]))
  last = math.max(last + 1, wall)
  local number, previous = digits(last), turn or ''
  redis.call('SET', KEYS[2], '0 ' .. number .. ' ' .. own .. ' ' .. previous)
  save()
  return epoch .. '|granted|' .. number .. '|' .. previous
end

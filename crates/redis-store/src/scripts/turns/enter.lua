-- Takes a ticket at the end of the queue, unless it is there.
--
-- ARGV  (elapsed), (the session), (the ticket's sequence number), how many may wait, 'wait' or 'try', the milliseconds for
--       which an idle queue is remembered, the floor of the numbers
-- Answers with the epoch and
--   'granted', the number, the previous holder with its mark ('' if forgotten)
--   'waiting', the number, the holder, the rest of its lease
--   'busy', the holder, the rest of its lease: for 'try', instead of waiting; the holder is asked whether it knows
--   'overloaded'
--   'unknown': the dead at the head were too many for one call; ask again
--   'dead': the session is
-- Nothing is written before everything that can be refused is.

last = math.max(last, tonumber(ARGV[7]))
if lease <= now then
  save()
  return epoch .. '|dead'
end
local moved = bury()
local is_there = member == own or is_behind(own)
if ARGV[5] == 'try' and (member and member ~= own or now < grace) then
  if moved then keep(ARGV[6]) end
  save()
  if not member or member == own then
    return epoch .. '|busy|' .. ARGV[2] .. '|' .. digits(grace - now)
  end
  local holder = session_of(member)
  if not alive(holder) then return epoch .. '|unknown' end
  if moved then tell() else push('n') end
  return epoch .. '|busy|' .. holder .. '|' .. digits(remaining(holder))
end
local most = tonumber(ARGV[4])
if not is_there and member and behind + 1 > most and behind + 1 - count_dead() > most then
  if moved then
    keep()
    tell()
  end
  save()
  return epoch .. '|' .. (alive(session_of(member)) and 'overloaded' or 'unknown')
end
if not is_there then
  last = math.max(last + 1, wall)
  if member then
    -- Where nobody waits, none is left from before the server lost the turn.
    if behind == 0 then redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -1) end
    redis.call('ZADD', KEYS[3], digits(last), own)
    behind = behind + 1
  else
    member, number = own, digits(last)
  end
end
if moved or not is_there then keep() end
save()
if moved and member ~= own then tell() end
return standing()

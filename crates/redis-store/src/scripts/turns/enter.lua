-- Takes a ticket at the end of the queue, unless it is there.
--
-- ARGV  (elapsed), the session, the ticket's sequence number, how many may wait, 'wait' or 'try', the milliseconds for
--       which an idle queue is remembered, the floor of the numbers
-- Answers with the epoch and
--   'granted', the number, the previous holder with its mark ('' if forgotten)
--   'waiting', the number, the holder, the rest of its lease
--   'busy', the holder, the rest of its lease: for 'try', instead of waiting; the holder is asked whether it knows
--   'overloaded'
--   'unknown': the dead at the head were too many for one call; ask again
--   'dead': the session is
-- Nothing is written before everything that can be refused is.

local session = ARGV[2]
last = math.max(last, tonumber(ARGV[7]))
local own = session .. ':' .. ARGV[3]
if not alive(session) then
  save()
  return {epoch, 'dead'}
end
local moved, member, number, previous = bury()
local is_there = member and (member == own or redis.call('ZSCORE', KEYS[2], own))
if ARGV[5] == 'try' then
  if member and member ~= own then
    if not alive(session_of(member)) then
      save()
      return {epoch, 'unknown'}
    end
    if moved then tell(member, number, previous) else push('n', member, number, previous) end
    save()
    local holder = session_of(member)
    return {epoch, 'busy', holder, digits(remaining(holder))}
  end
  if now < grace then
    save()
    if moved and not member then redis.call('PEXPIRE', KEYS[2], ARGV[6]) end
    return {epoch, 'busy', session, digits(grace - now)}
  end
end
if not is_there then
  local tickets = member and redis.call('ZCARD', KEYS[2]) - (previous and 1 or 0) or 0
  local most = tonumber(ARGV[4])
  if tickets > most and tickets - count_dead(previous) > most then
    if moved then tell(member, number, previous) end
    save()
    return {epoch, alive(session_of(member)) and 'overloaded' or 'unknown'}
  end
  last = math.max(last + 1, wall)
  redis.call('ZADD', KEYS[2], digits(last), own)
  save()
  if not member then
    if previous then redis.call('PERSIST', KEYS[2]) end
    member, number = own, last
  end
else
  save()
end
if moved and member ~= own then tell(member, number, previous) end
return standing(own, member, number, previous)

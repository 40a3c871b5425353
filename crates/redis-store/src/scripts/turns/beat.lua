-- Prolongs the lease of a session. A heartbeat that does not follow the last one is of a copy of the process: that ends the
-- session, for both.
--
-- ARGV  (elapsed), the session, its lease, the number of the heartbeat and its mark
-- Answers with the epoch and 'alive', the wall clock and when a session ended after which the queues are to be swept ('' for
-- none), or 'dead'.

local ended = forget_dead()
local session, beat = ARGV[2], ARGV[4] .. '-' .. ARGV[5]
if not alive(session) then
  save()
  return epoch .. '|dead'
end
local known = redis.call('HGET', KEYS[1], 'n:' .. session)
if known and known ~= beat and tonumber(ARGV[4]) <= tonumber(string.match(known, '^%d+')) then
  save('s:' .. session, digits(now))
  return epoch .. '|dead'
end
save('s:' .. session, digits(now + ARGV[3]), 'n:' .. session, beat)
return epoch .. '|alive|' .. digits(wall) .. '|' .. ended

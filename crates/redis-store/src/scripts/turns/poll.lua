-- Asks where a ticket stands, and asks the holder whether it knows of its own.
--
-- ARGV  (elapsed), the session, the ticket's sequence number
-- Answers as the script that enters does, or with 'unknown'.

local own = ARGV[2] .. ':' .. ARGV[3]
local is_there = redis.call('ZSCORE', KEYS[2], own)
save()
if not alive(ARGV[2]) then return {epoch, 'dead'} end
if not is_there then return {epoch, 'unknown'} end
local moved, member, number, previous = bury()
if member ~= own and alive(session_of(member)) then
  if moved then
    tell(member, number, previous)
  else
    push('n', member, number, previous)
  end
end
return standing(own, member, number, previous)

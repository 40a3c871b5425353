-- Asks where a ticket stands, and asks the holder whether it knows of its own.
--
-- ARGV  (elapsed), (the session), (the ticket's sequence number)
-- Answers as the script that enters does, or with 'unknown'.

local is_there = member == own or is_behind(own)
if lease <= now or not is_there then
  save()
  return epoch .. '|' .. (lease <= now and 'dead' or 'unknown')
end
local moved = bury()
if moved then keep() end
save()
if member ~= own and alive(session_of(member)) then
  if moved then tell() else push('n') end
end
return standing()

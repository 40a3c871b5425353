-- Gives a ticket back, whether it waits or holds. Harmless when repeated, and whether or not its session lives.
--
-- ARGV  (elapsed), (the session), (the ticket's sequence number), the milliseconds for which an idle queue is remembered, and
--       'done'; 'abandoned': something may be left; or 'unused': nobody has begun its turn, though it may have been granted,
--       so the holder before it stays the previous one
-- Answers with the epoch and 'left' or 'unknown'; then, if the next ticket is of the same session, what a push says.
-- A ticket that a dead session abandoned while it waited is left to those behind it, who so learn that something is left.

local held = member == own
local is_alone = held and behind == 0
if not held and not is_behind(own) then
  save()
  return epoch .. '|unknown'
end
if not held and ARGV[5] == 'abandoned' and lease <= now then
  save()
  return epoch .. '|left'
end
if held then
  local given_back = ARGV[5] == 'done' and (lease < 0 or lease > now)
  pass(ARGV[5] ~= 'unused' and (given_back and '!' or '?') .. ARGV[2])
else
  redis.call('ZREM', KEYS[3], own)
  behind = behind - 1
end
local moved = bury()
keep(ARGV[4])
-- Nothing is granted then, and nobody dies of it.
if not is_alone then save() end
if member and (held or moved) then
  if session_of(member) == ARGV[2] and now >= grace and lease > now then
    return epoch .. '|left|' .. string.match(member, ':(%d+)$') .. '|' .. number .. '|' .. (previous or '')
  end
  tell()
end
return epoch .. '|left'

-- Gives a ticket back, whether it waits or holds. Harmless when repeated, and whether or not its session lives.
--
-- ARGV  (elapsed), the session, the ticket's sequence number, the milliseconds for which an idle queue is remembered, and
--       'done'; 'abandoned': something may be left; or 'unused': nobody has begun its turn, though it may have been granted,
--       so the holder before it stays the previous one
-- Answers with the epoch and 'left' or 'unknown'; then, if the next ticket is of the same session, what a push says.
-- A ticket that a dead session abandoned while it waited is left to those behind it, who so learn that something is left.

local own = ARGV[2] .. ':' .. ARGV[3]
local first, _, before, is_last = head()
if first ~= own and not redis.call('ZSCORE', KEYS[2], own) then
  save()
  return {epoch, 'unknown'}
end
if first ~= own and ARGV[5] == 'abandoned' and not alive(ARGV[2]) then
  save()
  return {epoch, 'left'}
end
if first == own and ARGV[5] ~= 'unused' then
  pass(own, before, ARGV[5] == 'done' and gives_back(ARGV[2]))
else
  redis.call('ZREM', KEYS[2], own)
end
save()
local moved, member, number, previous
if not is_last then moved, member, number, previous = bury() end
if not member then
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
elseif first == own or moved then
  if session_of(member) == ARGV[2] and now >= grace and alive(ARGV[2]) then
    return {epoch, 'left', string.match(member, ':(%d+)$'), digits(number), previous or ''}
  end
  tell(member, number, previous)
end
return {epoch, 'left'}

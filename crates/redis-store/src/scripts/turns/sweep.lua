-- Removes the dead at the head of a queue, where nobody else may come again.
--
-- ARGV  (elapsed), nobody's session, the milliseconds for which an idle queue is remembered
-- Answers with the epoch and '1' if there are more of them, '0' if not.

local moved = bury()
if moved then keep(ARGV[3]) end
save()
if moved then tell() end
return epoch .. '|' .. (member and not alive(session_of(member)) and '1' or '0')

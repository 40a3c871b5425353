-- Frees a lock.
--
-- ARGV  (elapsed), the token
-- Answers with the epoch and '1' if the token held it, '0' if not.

local held = fence and token == ARGV[2]
if held then redis.call('DEL', KEYS[2]) end
save()
return epoch .. '|' .. (held and '1' or '0')

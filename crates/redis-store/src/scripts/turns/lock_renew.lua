-- Prolongs a lock.
--
-- ARGV  (elapsed), the token, for how long from now
-- Answers with the epoch and the fence, '' if the token does not hold it.

if fence and token == ARGV[2] then
  hold(fence, tonumber(ARGV[3]))
else
  fence = ''
end
save()
return epoch .. '|' .. fence

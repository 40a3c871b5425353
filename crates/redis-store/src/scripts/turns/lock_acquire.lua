-- Takes a lock, or prolongs it if the token holds it.
--
-- ARGV  (elapsed), the token, for how long
-- Answers with the epoch and 'acquired' and the fence, or 'busy' and the rest of it, or 'unopened'.

local ttl = tonumber(ARGV[3])
if epoch == '' then
  save()
  return epoch .. '|unopened'
end
if now < grace then
  save()
  return epoch .. '|busy|' .. digits(grace - now)
end
if fence and token ~= ARGV[2] then
  save()
  return epoch .. '|busy|' .. digits(lock_end - now)
end
if not fence then
  last = math.max(last + 1, wall)
  fence = digits(last)
end
hold(fence, ttl)
save()
return epoch .. '|acquired|' .. fence

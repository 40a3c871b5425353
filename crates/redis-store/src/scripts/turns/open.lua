-- Opens a session.
--
-- ARGV  (elapsed), the session, its lease, the epoch that its replica knew ('' for none), the floor of the numbers
-- Answers with the epoch and 'alive' or 'dead'.

forget_dead()
local born = tonumber(redis.call('HGET', KEYS[1], 'b') or 0)
local session, lease = ARGV[2], tonumber(ARGV[3])
if redis.call('HEXISTS', KEYS[1], 's:' .. session) == 1 and not alive(session) then
  save()
  return epoch .. '|dead'
end
if epoch == '' then
  epoch = digits(wall) .. '-' .. session
  born = now
end
if ARGV[4] ~= '' and ARGV[4] ~= epoch then
  grace = math.max(grace, born + lease)
end
last = math.max(last, tonumber(ARGV[5]))
save('e', epoch, 'b', digits(born), 's:' .. session, digits(now + lease))
return epoch .. '|alive'

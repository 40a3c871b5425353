-- Prolongs the lease of a session.
--
-- ARGV  (elapsed), the session, its lease
-- Answers with the epoch and 'alive' or 'dead'.

forget_dead()
if not alive(ARGV[2]) then
  save()
  return {epoch, 'dead'}
end
save('s:' .. ARGV[2], digits(now + ARGV[3]))
return {epoch, 'alive'}

-- Ends a session. Its tickets are given back by whoever knows them, or found by those behind them.
--
-- ARGV  (elapsed), the session, 'closed' or 'lost'
-- Answers with the epoch.

if alive(ARGV[2]) then
  save('s:' .. ARGV[2], digits(ARGV[3] == 'closed' and -now or now))
else
  save()
end
return epoch

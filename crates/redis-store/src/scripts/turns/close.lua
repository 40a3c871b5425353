-- Ends a session. Its tickets are given back by whoever knows them, or found by those behind them.
--
-- ARGV  (elapsed), the session
-- Answers with the epoch.

if alive(ARGV[2]) then
  save('s:' .. ARGV[2], digits(now))
else
  save()
end
return {epoch}

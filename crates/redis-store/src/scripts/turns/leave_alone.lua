-- Most often the only ticket goes, of a session that lives whatever the time is: the lease clock goes on by no more than the
-- caller saw pass. This is what all that follows comes to then, before the time is read and functions are made, which costs
-- as much as the commands. One that was closed has nothing left either.
local is_done = ARGV[5] == 'done'
local lives = lease < 0 or before and ARGV[1] ~= '' and lease > now + ARGV[1]
local first, previous = string.match(turn or '', '^0 %d+ (%S+) (.*)$')
if first == own and (lives or not is_done) then
  if ARGV[5] ~= 'unused' then previous = (is_done and '!' or '?') .. ARGV[2] end
  if previous == '' then
    redis.call('DEL', KEYS[2])
  else
    redis.call('SET', KEYS[2], previous, 'PX', ARGV[4])
  end
  return epoch .. '|left'
end

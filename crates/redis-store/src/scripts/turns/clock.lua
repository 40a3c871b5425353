-- The time, in microseconds as all times are. The lease clock stands still while the wall clock is set back, and goes on by no
-- more than the caller saw pass when it is set forward.
local time = redis.call('TIME')
local wall = time[1] * 1000000 + time[2]
if before then
  local gone = math.max(wall - before, 0)
  if ARGV[1] ~= '' and gone > ARGV[1] + 0 then gone = ARGV[1] + 0 end
  now = now + gone
else
  now = wall
end

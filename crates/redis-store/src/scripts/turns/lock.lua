-- Before the scripts of the locks.
--
-- KEYS[2]  the lock: FENCE:END:TOKEN. It expires an hour after its end, for a wall clock that was set forward.

local HOUR = 3600000
local found = redis.call('GET', KEYS[2])
local fence, lock_end, token
if found then
  fence, lock_end, token = string.match(found, '^(%d+):(%d+):(.*)$')
  if not fence then return redis.error_reply('DAMAGED a lock has no fence') end
  if now >= tonumber(lock_end) then fence = nil end
end

local function hold(number, ttl)
  redis.call('SET', KEYS[2], number .. ':' .. digits(now + ttl) .. ':' .. ARGV[2], 'PX',
    digits(math.ceil(ttl / 1000) + HOUR))
end

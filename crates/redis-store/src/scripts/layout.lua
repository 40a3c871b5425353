-- Records how the keys under the prefix are laid out, unless it is recorded.
--
-- KEYS  the record
-- ARGV  its fields and their values
-- Answers with the record that is there, as HGETALL does.

if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], unpack(ARGV))
end
return redis.call('HGETALL', KEYS[1])

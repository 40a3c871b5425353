-- A double as text, to the last digit.
local function digits(number)
  return string.format('%.0f', number)
end

local function save(...)
  redis.call('HSET', KEYS[1], 'clocks', struct.pack('<dddd', last, wall, now, grace), ...)
end

-- Tickets of one session, taken and given back in one call, each where nobody else has one. For all that is more the caller asks
-- again, by itself.
--
-- KEYS[2] and on  who has the turn of each key, as the other scripts write it
-- ARGV  (elapsed), (the session), the milliseconds for which an idle queue is remembered, the floor of the numbers, and for each
--       key 'e' to take a ticket, or 'd' (done), 'a' (abandoned), 'u' (unused) to give one back, with its sequence number
-- Answers with the epoch and for each key what its own script would, or nothing if it is to be asked; each on a line of its own.
-- Nothing is written before all is read. The commands are as few as there can be: one of them costs as much as all else for a key.

local read = redis.call('MGET', unpack(KEYS, 2))
local turns, answers, new, taken, granted = {}, {epoch}, {}, {}, false
local mark = ARGV[2] .. ':'
local may_enter = lease > now and now >= grace
last = math.max(last, ARGV[4] + 0)

for i = 2, #KEYS do
  local key, asked = KEYS[i], ARGV[i + 3]
  local turn, answer = turns[key], ''
  if turn == nil then turn = read[i - 1] end
  local what = string.sub(asked, 1, 1)
  if what ~= 'e' then
    local first, previous = string.match(turn or '', '^0 %d+ (%S+) (.*)$')
    if first == mark .. string.sub(asked, 2) then
      if what ~= 'u' then
        previous = (what == 'd' and (lease < 0 or lease > now) and '!' or '?') .. ARGV[2]
      end
      turns[key], answer = previous ~= '' and previous, 'left'
    end
  elseif may_enter and (not turn or string.find(turn, '^[!?]')) then
    last = math.max(last + 1, wall)
    local number, previous = string.format('%.0f', last), turn or ''
    turns[key] = '0 ' .. number .. ' ' .. mark .. string.sub(asked, 2) .. ' ' .. previous
    granted, answer = true, 'granted|' .. number .. '|' .. previous
  end
  answers[i] = answer
end

for i = 2, #KEYS do
  local key = KEYS[i]
  local turn = turns[key]
  if turn and string.sub(turn, 1, 1) == '0' then
    local into = read[i - 1] and taken or new
    into[#into + 1], into[#into + 2], turns[key] = key, turn, nil
  end
end
-- What is there and no text is not read, and not replaced either.
if #new > 0 and redis.call('MSETNX', unpack(new)) == 0 then return epoch .. string.rep('\n', #KEYS - 1) end
if #taken > 0 then redis.call('MSET', unpack(taken)) end
if granted then
  redis.call('HSET', KEYS[1], 'clocks', struct.pack('<dddd', last, wall, now, grace))
end
for key, turn in pairs(turns) do
  if turn then redis.call('SET', key, turn, 'PX', ARGV[3]) else redis.call('DEL', key) end
end
return table.concat(answers, '\n')

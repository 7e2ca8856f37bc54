-- Records on Lua's heap: `lua_work.lua RECORDS VISITS`; prints what was seen. Tables and strings by realloc,
-- all small.
local words = {}
for word in ("alpha beta gamma delta orders customer street invoice pending shipped"):gmatch("%a+") do
  words[#words + 1] = word
end
local count, visits = tonumber(arg[1]), tonumber(arg[2])
local seed = 1
local function draw(bound)
  seed = seed * 16807 % 2147483647
  return seed % bound
end

local records = {}
for number = 0, count - 1 do
  local tags = {}
  for at = 1, 3 do
    tags[at] = words[(number * 7 + at) % 10 + 1] .. "-tag"
  end
  records["customer/" .. number] = {
    id = number, name = words[number % 10 + 1] .. " " .. draw(1000000) .. " of the long street",
    tags = tags, lines = { number * 3, number % 17 },
  }
end

local seen = 0
for visit = 1, visits do
  local record = records["customer/" .. draw(count)]
  seen = (seen * 31 + #record.name + record.name:byte(8) + record.lines[2]) % 1000000007
  record.lines[2] = record.lines[2] + 1
  record.tags[visit % 3 + 1] = words[visit % 10 + 1] .. " again"
end

local total = 0
for number = 0, count - 1 do
  local record = records["customer/" .. number]
  total = (total * 31 + record.lines[2] + #table.concat(record.tags) + record.name:byte(9)) % 1000000007
end
print(string.format("%d records, %d, %d", count, seen, total))

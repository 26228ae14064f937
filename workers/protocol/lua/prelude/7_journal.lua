-- What of a string is UTF-8 as it is, bytes that are not as `\xNN`: cjson passes on whatever it gets, and names may be any
-- bytes. The same as `text` in workers/protocol/messages.py.
local BEYOND_ASCII = '[\128-\255]'
local REST = '[\128-\191]'
local CHARACTERS = { -- no surrogates, nothing longer than it need be, nothing behind U+10FFFF
  '^[\194-\223]' .. REST, '^\224[\160-\191]' .. REST, '^[\225-\236\238\239]' .. REST .. REST, '^\237[\128-\159]' .. REST,
  '^\240[\144-\191]' .. REST .. REST, '^[\241-\243]' .. REST .. REST .. REST, '^\244[\128-\143]' .. REST .. REST,
}
local function character_end(value, at)
  for _, character in ipairs(CHARACTERS) do
    local _, last = string.find(value, character, at)
    if last then
      return last
    end
  end
end

local function utf8_of(value)
  local at = string.find(value, BEYOND_ASCII)
  if not at then
    return value
  end
  local parts, from = {}, 1
  while at do
    local last = character_end(value, at)
    parts[#parts + 1] = string.sub(value, from, last or at - 1)
    if not last then
      parts[#parts + 1] = string.format('\\x%02x', string.byte(value, at))
    end
    from = (last or at) + 1
    at = string.find(value, BEYOND_ASCII, from)
  end
  return table.concat(parts) .. string.sub(value, from)
end

-- JSON strings, encoded once per call: consumer names repeat.
local encoded = {}
local function json_string(value)
  local text = encoded[value]
  if not text then
    local ok, result = pcall(function()
      return cjson.encode(utf8_of(value))
    end)
    text = ok and result or '"?"'
    encoded[value] = text
  end
  return text
end

-- Writes one entry of the journal: a lifecycle event, whose `data` is JSON text. A journal that is broken or full never stops an effect. It is trimmed
-- by the first event of a call and by every hundredth after it: a stream gives up its entries by the hundred anyway.
local try = redis.pcall -- a local name is reached faster
local add_to_journal
do
  local TRIM_EVERY, until_trim = 100, 0
  add_to_journal = function(journal, maxlen, ...)
    if until_trim == 0 then
      until_trim = TRIM_EVERY
      try('XADD', journal, 'MAXLEN', '~', maxlen, '*', ...)
    else
      try('XADD', journal, '*', ...)
    end
    until_trim = until_trim - 1
  end
end
local function journal_event(journal, maxlen, event, job_id, data)
  add_to_journal(journal, maxlen, 'event', event, 'job', job_id, 'data', data)
end

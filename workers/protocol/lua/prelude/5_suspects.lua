local SUSPECT_SCORE = 4503599627370496 -- 2^52: behind every due time, in order of parking; the first ones have just this

-- Adds an entry; returns its ID, or nil and the error's text.
local add_entry
do
  local MARKS = 32 -- words that a job may gain where it waits, or is given up: nothing that was made ready once is too large for it

  -- Of more words than unpack() gives: it has given the last ones, and the `left` first ones are put in front of these, a few at a time.
  -- Calls between functions of Lua's own know no limit.
  local function add_large_entry(stream, words, left, ...)
    if left == 0 then
      return redis.pcall('XADD', stream, '*', ...)
    elseif left < 16 then
      return add_large_entry(stream, words, left - 1, words[left], ...)
    end
    local i = left - 16
    return add_large_entry(stream, words, i, words[i + 1], words[i + 2], words[i + 3], words[i + 4], words[i + 5], words[i + 6],
      words[i + 7], words[i + 8], words[i + 9], words[i + 10], words[i + 11], words[i + 12], words[i + 13], words[i + 14], words[i + 15],
      words[left], ...)
  end

  add_entry = function(stream, fields)
    local n, reply = #fields, nil
    if n > MAX_WORDS + MARKS then
      return nil, 'too many fields'
    elseif n > MAX_UNPACKED then
      reply = add_large_entry(stream, fields, n - MAX_UNPACKED, unpack(fields, n - MAX_UNPACKED + 1))
    else
      reply = redis.pcall('XADD', stream, '*', unpack(fields))
    end
    if type(reply) == 'table' and reply.err then
      return nil, reply.err
    end
    return reply
  end
end

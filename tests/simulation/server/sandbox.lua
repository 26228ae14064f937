-- What a script finds in a server: its globals, `redis` and `cmsgpack`, and how what it returns goes over the wire.
-- Run once by scripts.py, which passes what it does itself. `call` never raises: an error comes as a table with `err`, and with
-- `raised_as` where redis.call raises another text.

local bridge, is_7 = ...
local bridge_call, bridge_log, sha1hex, pack, unpack_values = bridge.call, bridge.log, bridge.sha1hex, bridge.pack, bridge.unpack
local bridge_may = bridge.may

local getinfo = debug.getinfo
local env = {
  assert = assert, error = error, getmetatable = getmetatable, ipairs = ipairs, math = math, next = next, pairs = pairs,
  pcall = pcall, rawequal = rawequal, rawget = rawget, rawset = rawset, select = select, setmetatable = setmetatable,
  string = string, table = table, tonumber = tonumber, tostring = tostring, type = type, unpack = unpack, xpcall = xpcall,
  _VERSION = _VERSION,
}
env._G = env

-- The line of the script that is running, or 0 where nobody knows; nil outside a script.
local function line_of_script()
  for level = 2, 30 do
    local info = getinfo(level, 'Sl')
    if not info then
      return nil
    end
    if info.source == '=(tail call)' then
      return 0 -- `return redis.call(…)`: for a server that is C, and here it is Lua
    elseif info.source == '@user_script' and info.currentline > 0 then
      return info.currentline
    end
  end
end

-- From 7.0 on, an error that is a table comes as its text.
local function plainly(ok, err, ...)
  if not ok and type(err) == 'table' and type(err.err) == 'string' then
    return false, err.err
  end
  return ok, err, ...
end
if is_7 then
  env.pcall = function(...)
    return plainly(pcall(...))
  end
end

local redis = {}
env.redis = redis

local function with_line(reply)
  if not is_7 and reply.raised_as then -- 6.2 says where, in what the server itself objects to
    local caller = getinfo(3, 'S')
    local where = caller and caller.what == 'C' and '=[C]: -1' or '@user_script: ' .. (line_of_script() or 0)
    reply.err = where .. ': ' .. reply.raised_as
  end
  reply.raised_as = nil
end

function redis.pcall(...)
  local reply = bridge_call(...)
  if type(reply) == 'table' and reply.err then
    with_line(reply)
  end
  return reply
end

function redis.call(...)
  local reply = bridge_call(...)
  if type(reply) == 'table' and reply.err then
    with_line(reply)
    error(is_7 and reply or reply.err, 0)
  end
  return reply
end

if is_7 then
  function redis.acl_check_cmd(...)
    local may = bridge_may(...)
    if may == nil then
      error({ err = 'ERR Invalid command passed to redis.acl_check_cmd()' }, 0)
    end
    return may
  end
end

function redis.error_reply(text)
  if is_7 then
    text = string.gsub(text, '^-', '')
    if not string.find(text, ' ') then
      text = 'ERR ' .. text
    end
  end
  return { err = text }
end

function redis.status_reply(text)
  return { ok = text }
end

function redis.sha1hex(text)
  return sha1hex(text)
end

redis.LOG_DEBUG, redis.LOG_VERBOSE, redis.LOG_NOTICE, redis.LOG_WARNING = 0, 1, 2, 3
function redis.log(...)
  bridge_log(...)
end

local function values_of(ok, values, n)
  if not ok then
    error(values, 0)
  end
  return unpack(values, 1, n)
end
env.cmsgpack = {
  pack = function(...)
    local parts = {}
    for i = 1, select('#', ...) do
      parts[i] = pack((select(i, ...)))
    end
    return table.concat(parts)
  end,
  unpack = function(text)
    return values_of(unpack_values(text))
  end,
}

local NO_SUCH = 'Script attempted to access nonexistent global variable '
setmetatable(env, {
  __index = function(_, name)
    error(NO_SUCH .. "'" .. tostring(name) .. "'", 2)
  end,
  __newindex = function()
    error('Attempt to modify a readonly table', 2)
  end,
})

-- What a script returns, as RESP2.
local function integer(number)
  if number ~= number or number >= 2 ^ 63 or number < -2 ^ 63 then
    return '-9223372036854775808'
  end
  number = number < 0 and math.ceil(number) or math.floor(number)
  return number == 0 and '0' or string.format('%.0f', number)
end

local function one_line(text)
  return (string.gsub(text, '[\r\n]', ' '))
end

local append
local function append_table(value, out)
  local err, ok = rawget(value, 'err'), rawget(value, 'ok')
  if type(err) == 'string' then
    out[#out + 1] = '-' .. one_line((string.gsub(err, '[\r\n]+$', ''))) .. '\r\n'
    return
  elseif type(ok) == 'string' then
    out[#out + 1] = '+' .. one_line(ok) .. '\r\n'
    return
  end
  local n = 0
  while rawget(value, n + 1) ~= nil do
    n = n + 1
  end
  out[#out + 1] = '*' .. n .. '\r\n'
  for i = 1, n do
    append(value[i], out)
  end
end

function append(value, out)
  local kind = type(value)
  if kind == 'string' then
    out[#out + 1] = '$' .. #value .. '\r\n' .. value .. '\r\n'
  elseif kind == 'number' then
    out[#out + 1] = ':' .. integer(value) .. '\r\n'
  elseif kind == 'table' then
    append_table(value, out)
  elseif kind == 'boolean' and value then
    out[#out + 1] = ':1\r\n'
  else
    out[#out + 1] = '$-1\r\n'
  end
end

local function on_error(err)
  local line = line_of_script()
  if is_7 then
    if type(err) ~= 'table' then
      err = { err = 'ERR ' .. tostring(err) }
    end
    err.line = err.line or line
    return err
  end
  if type(err) == 'table' then -- what its own handler trips over
    return "@err_handler_def:9: err_handler_def:9: attempt to concatenate local 'err' (a table value)"
  end
  return (line and '@user_script:' .. line .. ': ' or '') .. tostring(err)
end

local function failed(digest, err)
  if is_7 then
    local where = err.line and ' script: ' .. digest .. ', on @user_script:' .. err.line .. '.' or ''
    return '-' .. one_line(tostring(err.err) .. where) .. '\r\n'
  end
  return '-ERR Error running script (call to f_' .. digest .. '): ' .. one_line((string.gsub(err, '[\r\n]+$', ''))) .. '\r\n'
end

local sandbox = {}

function sandbox.build(...)
  return { ... }
end

function sandbox.compile(source)
  local chunk, why = loadstring(source, '@user_script')
  if not chunk then
    return nil, why
  end
  return setfenv(chunk, env)
end

-- Returns the reply as it goes over the wire.
function sandbox.run(chunk, digest, keys, arguments)
  rawset(env, 'KEYS', keys)
  rawset(env, 'ARGV', arguments)
  local ok, result = xpcall(chunk, on_error)
  if not ok then
    return failed(digest, result)
  end
  local out = {}
  append(result, out)
  return table.concat(out)
end

function sandbox.status(text)
  return { ok = text }
end

function sandbox.failure(text, raised_as)
  return { err = text, raised_as = raised_as }
end

return sandbox

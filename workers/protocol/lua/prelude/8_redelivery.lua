-- The agreement says how jobs become ready again. Policy `stream` copies within the stream itself, which is only right
-- where this group is its only one (others would see the copy) and entry IDs are automatic (an explicit ID below the
-- copy's would be refused from then on). Returns why not, or nil.
local FIRST_AUTOMATIC_MS = 1483228800000 -- 2017-01-01: streams are younger, so an ID below it was made by somebody
local CLOCK_TOLERANCE_MS = 31622400000 -- a year: of a clock that was set back the IDs still are; other units are farther off
local function layout_refusal(policy, stream, at_ms)
  if policy ~= 'stream' or redis.call('EXISTS', stream) == 0 then
    return nil
  end
  if #redis.call('XINFO', 'GROUPS', stream) > 1 then
    return 'several_groups'
  end
  local info = redis.call('XINFO', 'STREAM', stream)
  local last_id = info_field(info, 'last-generated-id')
  -- Libraries make a stream for a group by adding one entry, whose ID they choose, and deleting it.
  if info_field(info, 'length') == 0 and (last_id == '0-1' or info_field(info, 'entries-added') == 1) then
    return nil
  end
  local last_ms = entry_ms(last_id)
  if last_id ~= '0-0' and (last_ms < FIRST_AUTOMATIC_MS or last_ms > at_ms + CLOCK_TOLERANCE_MS) then
    return 'explicit_ids'
  end
  return nil
end

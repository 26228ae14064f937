-- Writes an event to the journal: its name, then fields and values in turns. A journal that is broken or full never stops an effect.
local function journal_event(journal, maxlen, ...)
  redis.pcall('XADD', journal, 'MAXLEN', '~', maxlen, '*', 'event', ...)
end

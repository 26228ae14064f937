-- The keys and first arguments of a script that moves jobs: stands for `--- @keys`.
--
-- KEYS[1] source      orders, {orders}:retry:billing or {orders}:dead:billing  stream that an entry is in
-- KEYS[2] stream      orders                       stream
-- KEYS[3] retry       {orders}:retry:billing       stream
-- KEYS[4] dead        {orders}:dead:billing        stream
-- KEYS[5] settings    {orders}:group:billing       hash
-- KEYS[6] schedule    {orders}:scheduled:billing   sorted set
-- KEYS[7] quarantine  {orders}:quarantine:billing    hash: released jobs, by entry ID
-- KEYS[8] journal     {orders}:journal             stream
-- ARGV[1] group  ARGV[2] journal's MAXLEN ('0' = write none)

local source, stream, retry, dead, settings, schedule, quarantine, journal = unpack(KEYS)
local group, maxlen = ARGV[1], tonumber(ARGV[2])

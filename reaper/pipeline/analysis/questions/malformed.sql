-- Which entries could nobody read, and why?
select stream, reason, count(*) as entries from malformed group by stream, reason

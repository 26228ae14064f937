-- How many events are left out because they claim to be from before 2018 or from the future? Whatever the scope.
select stream, count(*) as events
from events
where date < date'2018-01-01' or (date >= to_date(:latest) and at >= :latest)
group by stream

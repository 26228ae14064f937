"""Which errors of Redis are news."""

from redis.exceptions import AuthenticationError, BusyLoadingError, NoPermissionError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from workers.protocol.meaning import in_words
from workers.runtime.redis_failures import RETELL_S, RedisFailures


def told(troubles: RedisFailures, *met: tuple[str, Exception | None], now: float = 0.0) -> list[bool]:
    news = []
    for part, error in met:
        news.append(bool(troubles.works(part, now)) if error is None else troubles.failed(part, error, now))
    return news


CLOSED, REFUSED = RedisConnectionError("Connection closed by server."), ConnectionRefusedError(111, "refused")
DENIED = NoPermissionError("this user has no permissions to run the 'xreadgroup' command")


def test_an_outage_is_told_though_some_part_is_denied_already() -> None:
    troubles = RedisFailures()
    met = [("journal", DENIED), ("reading", CLOSED), ("settling", REFUSED), ("reading", None), ("settling", None)]
    assert told(troubles, *met) == [True, True, False, False, True]
    assert told(troubles, ("reading", CLOSED), ("reading", None)) == [True, True]
    assert troubles.denials == [f"journal: {in_words(DENIED)}"]


def test_when_the_reason_of_an_outage_changes_the_new_one_is_told_once() -> None:
    troubles, wrong = RedisFailures(), AuthenticationError("invalid username-password pair or user is disabled.")
    met = [("reading", CLOSED), ("settling", CLOSED), ("reading", wrong), ("settling", wrong), ("reading", CLOSED)]
    assert told(troubles, *met) == [True, False, True, False, False]
    assert troubles.denials == [str(wrong)]
    assert told(troubles, ("reading", None), ("settling", None)) == [False, True]
    assert troubles.denials == []


def test_that_contact_is_lost_is_no_news_where_the_server_has_said_why() -> None:
    loading = BusyLoadingError("Redis is loading the dataset in memory")
    assert told(RedisFailures(), ("settling", loading), ("reading", CLOSED), ("reading", loading)) == [
        True,
        False,
        False,
    ]


def test_a_part_that_is_denied_in_turns_with_working_fills_no_log() -> None:
    troubles = RedisFailures()
    turns = [("settling", DENIED), ("settling", None)] * 100
    assert sum(told(troubles, *turns)) == 2
    assert told(troubles, ("settling", DENIED), now=RETELL_S + 1) == [True]


def test_a_denial_of_another_kind_is_told() -> None:
    met = [("settling", DENIED), ("settling", ResponseError("OOM command not allowed")), ("settling", DENIED)]
    assert told(RedisFailures(), *met) == [True, True, False]

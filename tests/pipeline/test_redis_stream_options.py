"""Options, and passwords, which must never be shown."""

import pytest

from reaper.pipeline.redis_stream import RedisStreamError
from reaper.pipeline.redis_stream.source import RedisStreamSource

URL = "redis://127.0.0.1:6379/0"
SECRET = "correct-horse"  # noqa: S105


def source(**given: str) -> RedisStreamSource:
    return RedisStreamSource({"url": URL, "streamPattern": "jobs", **given})


def test_names_of_options_are_in_any_case_and_patterns_are_separated_by_commas() -> None:
    parsed = source(MAXENTRIESPERTRIGGER="7", streampattern=" a:* , b,, ").parsed
    assert (parsed.max_entries, parsed.patterns) == (7, ("a:*", "b"))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"maxEntriesPerTriger": "7"}, "has no option maxentriespertriger. Did you mean maxEntriesPerTrigger"),
        ({"schema": "x"}, "has no option schema. Its options are url, urlEnv, "),
        ({"partitions": "many"}, "option partitions is 'many'"),
        ({"partitions": "0"}, "option partitions is '0'"),
        ({"retrySeconds": "-1"}, "option retrySeconds is '-1'"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss is 'maybe'"),
        ({"streamPattern": " , "}, "option streamPattern is missing"),
        ({"url": ""}, "Set either option url, or option urlEnv"),
        ({"urlEnv": "REDIS"}, "Set either option url, or option urlEnv"),
        ({"url": "", "urlEnv": "NOT_SET_HERE"}, "NOT_SET_HERE, which is not set"),
        ({"url": "redis+cluster://h1,h2/1"}, "a cluster has only database 0"),
        ({"url": "redis+sentinel://h1"}, "the name of the master is missing"),
        ({"url": "redis://h?protocol=3"}, "unknown option after the .... redis:// takes"),
    ],
)
def test_a_value_that_makes_no_sense_is_rejected_by_name(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(RedisStreamError, match=sentence):
        source(**given)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@host",
        f"redis://user:{SECRET}@host:1/0",
        f"rediss://host/0?password={SECRET}",
        f"rediss+sentinel://h/m?sentinel_password={SECRET}",
        f"rediss+sentinel://h/m?ssl_password={SECRET}",
    ],
)
def test_a_password_in_an_option_is_rejected_and_not_repeated(url: str) -> None:
    with pytest.raises(RedisStreamError, match="option url contains a password") as caught:
        source(url=url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url", [f"redis://:{SECRET}@host:{SECRET}/x", f"redis://:a/{SECRET}@host", f"http://:{SECRET}@host"]
)
def test_an_address_that_is_none_is_rejected_without_its_password(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_URL", url)
    with pytest.raises(RedisStreamError, match="the address of Redis cannot be used") as caught:
        source(url="", urlEnv="JOURNAL_URL")
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_password_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_URL", f"redis://:{SECRET}@host")
    options = source(url="", urlEnv="JOURNAL_URL").parsed
    assert options.url == f"redis://:{SECRET}@host"
    assert SECRET not in repr(options)

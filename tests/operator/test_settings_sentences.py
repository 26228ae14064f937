"""The messages about settings that cannot work: name, source, reason, and advice."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from reaper.settings import ReaperSettings
from tests.operator.conftest import run_command
from workers.protocol.errors import ConfigurationError
from workers.runtime.settings import load_settings

PAIR = '[[groups]]\nstream = "orders"\ngroup = "billing"\n'
NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture(autouse=True)
def _no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REAPER_REDIS_URL", raising=False)


def _complaint(tmp_path: Path, toml: str = "", flags: Mapping[str, str] | None = None) -> str:
    file = tmp_path / "reaper.toml"
    file.write_text(toml)
    with pytest.raises(ConfigurationError) as caught:
        load_settings(ReaperSettings, flags=flags, file=file)
    return str(caught.value).replace(str(file), "FILE")


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ('redis-url = "x"', "unknown setting 'redis-url' in FILE. Did you mean 'redis_url'?"),
        ("[[groupss]]", "unknown setting 'groupss' in FILE. Did you mean 'groups'?"),
        (
            PAIR + "visiblity_timeout = 3",
            "unknown setting 'groups.0.visiblity_timeout' (in FILE).",
        ),
        ('[[groups]]\nstream = "orders"', "setting 'groups.0.group' (in FILE) is missing."),
    ],
)
def test_unknown_and_missing_names(toml: str, sentence: str, tmp_path: Path) -> None:
    assert _complaint(tmp_path, toml) == sentence


TOO_SHORT = "is invalid. Write a duration of at least"
NO_DURATION = "Write a duration, such as 30s, 5m or 24h, and at most 3660d."


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        (
            "full_scan_interval = 0.009",
            f"'full_scan_interval' (in FILE) {TOO_SHORT} 0.01s.",
        ),
        (
            "consumer_retention = 0.0001",
            f"'consumer_retention' (in FILE) {TOO_SHORT} 0.001s.",
        ),
        ("lease_ttl = -1", f"'lease_ttl' (in FILE) {TOO_SHORT} 0.5s."),
        (
            PAIR + "visibility_timeout = 0",
            f"'groups.0.visibility_timeout' (in FILE) {TOO_SHORT} 0.1s.",
        ),
        ('lease_ttl = "soon"', f"'lease_ttl' (in FILE) is invalid. {NO_DURATION}"),
        ("lease_ttl = true", f"'lease_ttl' (in FILE) is invalid. {NO_DURATION}"),
        ("lease_ttl = inf", f"'lease_ttl' (in FILE) is invalid. {NO_DURATION}"),
        ("lease_ttl = nan", f"'lease_ttl' (in FILE) is invalid. {NO_DURATION}"),
        ('lease_ttl = "3661d"', f"'lease_ttl' (in FILE) is invalid. {NO_DURATION}"),
        ("max_deliveries = 0", "'max_deliveries' (in FILE) is invalid. Input should be greater than or equal to 1."),
        (
            "redis_url = 5",
            "'redis_url' (in FILE) is invalid. Input should be a valid string.",
        ),
        (
            'redelivery = "retry_stream"',
            "'redelivery' (in FILE) is invalid. Input should be 'stream', 'retry-stream' or 'in-place'.",
        ),
        (
            "groups = 5",
            "'groups' (in FILE) is invalid. Write STREAM/GROUP, for example orders/billing, or [[groups]] tables.",
        ),
        (
            'groups = ["orders"]',
            "'groups' (in FILE) is invalid. 'orders' is not a group. Write STREAM/GROUP, for example orders/billing.",
        ),
        ('groups = "a/b,a/b"', "'groups' (in FILE) is invalid. 'a/b' occurs twice. Name each group once."),
    ],
)
def test_impossible_values(toml: str, sentence: str, tmp_path: Path) -> None:
    assert _complaint(tmp_path, toml) == f"setting {sentence}"


def test_a_value_is_not_quoted_because_it_can_be_a_password(tmp_path: Path) -> None:
    toml = 'redis_url = ["redis://:pa55word@host"]\nmax_deliveries = "pa55word"'
    said = _complaint(tmp_path, toml)
    assert ("'redis_url'" in said, "'max_deliveries'" in said, "pa55word" in said) == (True, True, False)


def test_a_stream_that_is_only_a_hash_tag_is_rejected(tmp_path: Path) -> None:
    assert _complaint(tmp_path, 'groups = "{orders}/billing"') == (
        "stream '{orders}' is only a hash tag, so its keys would be those of stream "
        "'orders'. Rename it, for example to '{orders}:jobs'."
    )


@pytest.mark.anyio
async def test_a_misspelt_flag_is_met_with_a_suggestion() -> None:
    answer = await run_command(NOWHERE, "run", "--visiblity-timeout", "3")
    assert answer.code == 2
    assert "'--visibility-timeout'" in answer.err


@pytest.mark.anyio
async def test_without_groups_the_replica_says_how_to_name_them() -> None:
    answer = await run_command(NOWHERE, "run")
    assert (answer.code, answer.err.startswith("error: cannot start: no groups are set.")) == (2, True)

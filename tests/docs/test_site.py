"""The hooks of the site keep links between its pages, and show the help of each command."""

from types import SimpleNamespace

import pytest

from docs.site_commands import on_page_markdown as with_commands
from docs.site_links import on_page_markdown


@pytest.mark.parametrize(
    ("page", "link", "shown"),
    [
        ("README.md", "[a](json.md#top)", "[a](json.md#top)"),
        ("README.md", "[a](../README.md#quick-start)", "[a](quick-start.md#quick-start)"),
        ("README.md", "[a](../CHANGELOG.md)", "[a](changelog.md)"),
        ("internals/test-record.md", "[a](../../README.md)", "[a](../quick-start.md)"),
        ("quick-start.md", "[a](docs/adopt.md#roll-back)", "[a](adopt.md#roll-back)"),
        ("quick-start.md", "![a](docs/images/report.png)", "![a](images/report.png)"),
        ("quick-start.md", "[a](LICENSE)", "a (`LICENSE`)"),
        ("internals/adr/README.md", "[a](../protocol.md)", "[a](../protocol.md)"),
        ("internals/adr/README.md", "[a](../../../deploy/)", "a (`deploy`)"),
        ("workers.md", "[a](examples/bare_worker.py)", "a (`examples/bare_worker.py`)"),
        ("README.md", "[a](https://redis.io/docs)", "[a](https://redis.io/docs)"),
    ],
)
def test_links_that_leave_the_site_become_text(page: str, link: str, shown: str) -> None:
    text = on_page_markdown(f"see {link}.", page=SimpleNamespace(file=SimpleNamespace(src_uri=page)))
    assert text == f"see {shown}."


def test_the_page_of_the_commands_has_the_help_of_each_one() -> None:
    text = with_commands("# Commands\n", page=SimpleNamespace(file=SimpleNamespace(src_uri="commands.md")))
    assert text.startswith("# Commands\n")
    for command in ("reaper status", "reaper groups create", "reaper pipeline trim", "worker run"):
        assert f"\n## `{command}`\n\n```text\nUsage: {command} [OPTIONS]" in text
    assert with_commands("else", page=SimpleNamespace(file=SimpleNamespace(src_uri="json.md"))) == "else"

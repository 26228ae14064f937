"""What the site's hook makes of links: those that stay in `docs/` stay links."""

from types import SimpleNamespace

import pytest

from docs.site_links import on_page_markdown


@pytest.mark.parametrize(
    ("page", "link", "shown"),
    [
        ("README.md", "[a](json.md#top)", "[a](json.md#top)"),
        ("README.md", "[a](../CHANGELOG.md)", "a (`CHANGELOG.md`)"),
        ("internals/adr/README.md", "[a](../protocol.md)", "[a](../protocol.md)"),
        ("internals/adr/README.md", "[a](../../../deploy/)", "a (`deploy`)"),
        ("workers.md", "[a](examples/bare_worker.py)", "a (`examples/bare_worker.py`)"),
        ("README.md", "[a](https://redis.io/docs)", "[a](https://redis.io/docs)"),
    ],
)
def test_links_that_leave_the_documentation_become_text(page: str, link: str, shown: str) -> None:
    told = on_page_markdown(f"see {link}.", page=SimpleNamespace(file=SimpleNamespace(src_uri=page)))
    assert told == f"see {shown}."

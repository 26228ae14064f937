"""What can be missing for a report."""

from workers.protocol.errors import ConfigurationError


def missing_matplotlib() -> ConfigurationError:
    """Return the sentence for those who have no matplotlib."""
    return ConfigurationError(
        "the report draws charts with matplotlib, which is not installed: run pip install '.[report]' in your clone."
    )

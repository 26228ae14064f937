"""What can be missing for a report."""

from workers.protocol.errors import ConfigurationError, StreamReaperError


def missing_matplotlib() -> ConfigurationError:
    """Return the sentence for those who have no matplotlib."""
    return ConfigurationError(
        "the report draws charts with matplotlib, which is not installed: run pip install '.[report]' in your clone."
    )


class NoAnswersError(StreamReaperError):
    """Spark answers too few questions for a page."""

    def __init__(self, unanswered: int, asked: int, reason: str) -> None:
        super().__init__(f"Spark did not answer {unanswered} of {asked} questions: {reason}")

"""Violations that are met while a story is played."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Findings:
    """The violations of one story."""

    sentences: list[str] = field(default_factory=list)
    known: set[str] = field(default_factory=set)

    def add(self, sentence: str, when: str = "") -> None:
        """Note a violation once. ``when`` returns the step that caused it."""
        if sentence not in self.known:
            self.known.add(sentence)
            self.sentences.append(f"{sentence} ({when})" if when else sentence)

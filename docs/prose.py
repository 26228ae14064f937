"""Checks that prose is plain English: `python docs/prose.py [FILE…]`. Limits are in `pyproject.toml`.

A linter like proselint or vale looks for single words and cannot see the clauses that made these texts hard to read.
Four figures are counted for each file, over pages and over the docstrings and comments of Python files:

- ``relative`` is the percentage of sentences with a headless what/who/where clause ("What fails is retried")
- ``actors`` counts vague actors per 1,000 words
- ``chained`` counts semicolons and colons per 100 sentences
- ``long`` is the percentage of sentences of more than 30 words
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FEWEST_SENTENCES = 10
LONG_SENTENCE = 30
WORST_SHOWN = 3

_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_RELATIVE = "what|who|whoever|whatever|whom|whose"
_STARTS = re.compile(rf"^\W*(?:{_RELATIVE}|where|wherever|whichever)\b", re.IGNORECASE)
_INSIDE = re.compile(
    r"(?:[,;:]\s+(?:(?:and|but|or|so|also|as)\s+)?"
    r"|\b(?:and|but|of|to|for|with|from|by|than|as|says?|tells?|on|at|after|before)\s+)"
    rf"(?:{_RELATIVE})\b",
    re.IGNORECASE,
)
_ACTORS = re.compile(r"\b(nobody|somebody|anybody|everybody|nothing|whoever|whatever|such|told|tells)\b", re.IGNORECASE)
_FENCED = re.compile(r"^[ \t]*(```|~~~).*?^[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL)
_GENERATED = re.compile(r"^::: .*(?:\n    .*)*", re.MULTILINE)
_LABEL = re.compile(r"^\s*[\w*.]+:(?:\s|$)", re.MULTILINE)
"""The name of a section in a docstring, of an argument, or of an error."""
_DIRECTIVE = re.compile(r"(?:type|noqa|pragma|fmt):")
_ITEM = re.compile(r"^(?:[-*+•]|\d+[.)])\s+")


def sentences(markdown: str) -> list[str]:
    """Return the sentences of a text, without code, tables, headings and fragments of fewer than three words."""
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)|<[^>\n]+>", "", _GENERATED.sub("", _FENCED.sub("\n", markdown)))
    text = re.sub(r"(``+).+?\1|`[^`\n]+`", "code", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    paragraphs = [""]
    for line in text.splitlines():
        stripped = line.strip()
        item = _ITEM.match(stripped)
        if not stripped or stripped[0] in "|#" or item:
            paragraphs.append(stripped[item.end() :] if item else "")
        else:
            paragraphs[-1] += " " + stripped.lstrip("> ")
    parts = (
        part.strip()
        for paragraph in paragraphs
        for part in re.split(r"(?<=[.!?])[\"')\]*_]*\s+(?=[\"'(\[*_]*[A-Z0-9])", paragraph)
    )
    return [part for part in parts if len(re.findall(r"[A-Za-z]{2,}", part)) >= 3]


def faults(sentence: str) -> dict[str, int]:
    """Return how often each kind of fault is in a sentence."""
    relative = not sentence.endswith("?") and (_STARTS.search(sentence) or _INSIDE.search(sentence))
    return {
        "relative": int(bool(relative)),
        "actors": len(_ACTORS.findall(sentence)),
        "chained": sentence.count(";") + len(re.findall(r":\s", sentence)),
        "long": int(len(_WORD.findall(sentence)) > LONG_SENTENCE),
    }


def figures(found: Sequence[str]) -> dict[str, float]:
    """Return the four figures of some sentences."""
    counts = [faults(one) for one in found]
    words = sum(len(_WORD.findall(one)) for one in found)
    total = {name: sum(count[name] for count in counts) for name in ("relative", "actors", "chained", "long")}
    return {
        name: 1000 * count / max(1, words) if name == "actors" else 100 * count / max(1, len(found))
        for name, count in total.items()
    }


def prose_of(path: Path) -> str:
    """Return a page, or the docstrings and comments of a Python file as paragraphs."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return text
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    parts = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, documented)]
    parts = [_LABEL.sub("", part) for part in parts]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
    return "\n\n".join([*parts, *(one for one in comments if not _DIRECTIVE.match(one))])


def problems(path: Path, settings: dict[str, Any]) -> Iterator[str]:
    """Yield each limit that a file exceeds, with the sentences to rewrite first."""
    name, text = path.relative_to(ROOT).as_posix(), prose_of(path)
    found = sentences(text)
    measured = figures(found) if len(found) >= FEWEST_SENTENCES else {}
    for kind, figure in measured.items():
        if figure > settings[kind]:
            worst = sorted(found, key=lambda one: (faults(one)[kind], len(one)), reverse=True)[:WORST_SHOWN]
            shown = "".join(f"\n    {one[:160]}" for one in worst if faults(one)[kind])
            yield f"{name}: {kind} {figure:.1f}, limit {settings[kind]}{shown}"
    words = len(text.split())
    if path.suffix == ".md" and words > settings["page_words"] and not any(map(path.match, settings["longer_pages"])):
        yield f"{name}: {words} words, limit {settings['page_words']}"


def main(arguments: Sequence[str]) -> int:
    """Print the problems. Return 1 if there are any."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["prose"]
    names = [Path(one).resolve() for one in arguments]
    paths = names or sorted(path for pattern in settings["files"] for path in ROOT.glob(pattern))
    lines = [line for path in paths for line in problems(path, settings)]
    print("\n".join(lines) if lines else f"prose: {len(paths)} files are within the limits")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

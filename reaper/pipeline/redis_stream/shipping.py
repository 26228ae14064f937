"""How our classes get to Spark's Pythons: by value, and put together once in each process.

A query makes its data source in one Python, plans in a second one, and reads in others; each hands on what it was
given. cloudpickle takes classes apart function by function, anew in each process and for each query, and that took
longer than all else there. So they are taken apart once, where a source is registered (`seal`), and travel as one piece
of bytes; what a query adds (`Sealed`) names the classes in it by their places.
"""

import gc
import io
import pickle
import sys
import uuid
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource

_SHELF = "redis-stream's boxes"
"""A module that is in no file: where a process keeps the boxes it has opened."""
_MOST_BOXES = 4
"""A server of Spark Connect has clients that come and go, each with a box of its own."""


class Box:
    """Classes that travel together."""

    def __init__(self, source: type, classes: Sequence[type]) -> None:
        self.key = uuid.uuid4().hex
        self.source = source
        self._classes = list(classes)
        self.content = b""
        """This box itself, as bytes; empty while it is made into them."""

    def holds(self, cls: type) -> bool:
        """Tell whether a class is one of these."""
        return cls in self._classes

    def pack(self, thing: Any) -> bytes:
        """Return a thing as bytes, in which these classes stand by their places."""
        packed = io.BytesIO()
        _Packer(packed, self._classes).dump(object.__reduce_ex__(thing, 2))  # type: ignore[no-untyped-call]
        return packed.getvalue()

    def unpack(self, packed: bytes) -> Any:
        """Return a thing again."""
        make, arguments, state, *_ = _Unpacker(io.BytesIO(packed), self._classes).load()
        thing = make(*arguments)
        vars(thing).update(state or {})
        return thing


class Sealed:
    """What a query adds to a box, and what Spark pickles: sources, readers, writers.

    By themselves where they are in no box, as in the program that has imported them.
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return the box, and what is not in it."""
        box = next((box for box in _boxes().values() if box.holds(type(self))), None)
        if box is None or not box.content:
            return super().__reduce_ex__(protocol)
        return _unpack, (box.key, box.content, box.pack(self))


def seal(source: type[DataSource]) -> type[DataSource]:
    """Return what to register with Spark for a data source, whose modules cloudpickle has to pickle by value."""
    noting = _Noting(io.BytesIO())
    noting.dump(source)  # type: ignore[no-untyped-call]
    box = Box(source, noting.classes)
    key, content, called = box.key, cloudpickle.dumps(box), source.name()  # type: ignore[no-untyped-call]

    class Front(DataSource):
        """Makes the source itself, where Spark makes a source."""

        def __new__(cls, options: Any) -> Any:
            """Open the box."""
            return _opened(key, content).source(options)

        @classmethod
        def name(cls) -> str:
            """Return the format's name."""
            return called

    return Front


def _unpack(key: str, content: bytes, packed: bytes) -> Any:
    return _opened(key, content).unpack(packed)


def _opened(key: str, content: bytes) -> Box:
    boxes = _boxes()
    if key not in boxes:
        box: Box = pickle.loads(content)  # noqa: S301 - from who runs the query, as what it is part of
        box.content = content
        # Where one program has sealed a source twice, cloudpickle makes the classes of before into those of now.
        overwritten = [other for other, held in boxes.items() if held.holds(box.source)]
        for other in overwritten if len(boxes) < _MOST_BOXES else list(boxes):
            del boxes[other]
        boxes[key] = box
        # Spark collects garbage after each task, and walks through all that libraries have made at their import:
        # 30 to 70 ms of a core, while others work on the same query. Once: what is garbage then stays.
        if not gc.get_freeze_count():
            gc.freeze()
    return boxes[key]


def _boxes() -> dict[str, Box]:
    """Return the boxes of this process. Our own modules' globals are put together anew with each pickle."""
    shelf = sys.modules.setdefault(_SHELF, ModuleType(_SHELF))
    boxes: dict[str, Box] = vars(shelf).setdefault("boxes", {})
    return boxes


class _Noting(cloudpickle.Pickler):
    """Takes note of the classes that are pickled by value."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)  # type: ignore[no-untyped-call]
        self.classes: list[type] = []

    def reducer_override(self, obj: Any) -> Any:
        """Reduce as ever."""
        reduced = super().reducer_override(obj)  # type: ignore[no-untyped-call]
        if isinstance(obj, type) and reduced is not NotImplemented:
            self.classes.append(obj)
        return reduced


class _Packer(cloudpickle.Pickler):
    def __init__(self, file: Any, classes: Sequence[type]) -> None:
        super().__init__(file)  # type: ignore[no-untyped-call]
        self._places = {cls: place for place, cls in enumerate(classes)}

    def persistent_id(self, obj: Any) -> int | None:
        """Return the place of a class."""
        return self._places.get(obj) if isinstance(obj, type) else None


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: Any, classes: Sequence[type]) -> None:
        super().__init__(file)
        self._classes = classes

    def persistent_load(self, pid: Any) -> type:
        """Return the class at a place."""
        found: type = self._classes[pid]
        return found

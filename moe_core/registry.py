"""Name -> object tables that list their alternatives when a name is unknown."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from moe_core.errors import UnknownName

T = TypeVar("T")


class Registry(Generic[T]):
    """A table filled by decorators and read by name."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that files its object under `name`; a second use of a name is a bug."""

        def file(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = entry
            return entry

        return file

    def __getitem__(self, name: str) -> T:
        """The object filed under `name`.

        Raises:
            UnknownName: nothing is; the message lists what there is.
        """
        try:
            return self._entries[name]
        except KeyError as error:
            known = ", ".join(sorted(self._entries)) or "none"
            raise UnknownName(f"{self.kind} {name!r} is unknown; there are: {known}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

"""Problems found in a data set: sentences that name a file, with a limit on how often one is repeated."""

from collections import Counter

MOST_ALIKE = 20


class Problems:
    """A growing list of sentences; after `MOST_ALIKE` of one kind about one file the rest are counted."""

    def __init__(self) -> None:
        self._sentences: list[str] = []
        self._alike: Counter[tuple[str, str]] = Counter()

    def add(self, file: str, kind: str, detail: str = "") -> None:
        """Note a problem.

        Args:
            file: the name of the file that is wrong.
            kind: what is wrong, in words that are the same for all problems of the kind.
            detail: where in the file, such as a key.
        """
        self._alike[file, kind] += 1
        if self._alike[file, kind] <= MOST_ALIKE:
            self._sentences.append(f"{file}: {detail}: {kind}" if detail else f"{file}: {kind}")

    def sentences(self) -> tuple[str, ...]:
        """All problems in the order they were found, then how many more there are of each kind."""
        more = (
            f"{file}: {number - MOST_ALIKE:,} more of the kind: {kind}"
            for (file, kind), number in self._alike.items()
            if number > MOST_ALIKE
        )
        return (*self._sentences, *more)

"""Sources: one generator function per kind, each yielding candidate pictures' bytes in a fixed order."""

from collections.abc import Callable, Generator
from typing import Annotated, Any, get_args

from pydantic import Field

from mirage.declarations import SourceBase
from mirage.sources.candidate import Candidate, MissingSource, Surroundings
from mirage.sources.folder import FolderSource, open_folder
from mirage.sources.generated import GeneratorSource, open_generator
from mirage.sources.git import GitSource, open_git
from mirage.sources.hub import HubSource, open_hub
from mirage.sources.shards import ShardsSource, open_shards
from mirage.sources.table import TableSource, open_table
from mirage.sources.urls import UrlsSource, open_urls

__all__ = ["KINDS", "OPENERS", "Candidate", "MissingSource", "Source", "Surroundings", "open_source"]

Source = Annotated[
    FolderSource | GitSource | ShardsSource | TableSource | UrlsSource | HubSource | GeneratorSource,
    Field(discriminator="kind"),
]

OPENERS: dict[type[SourceBase], Callable[[Any, Surroundings], Generator[Candidate]]] = {
    FolderSource: open_folder,
    GitSource: open_git,
    ShardsSource: open_shards,
    TableSource: open_table,
    UrlsSource: open_urls,
    HubSource: open_hub,
    GeneratorSource: open_generator,
}
KINDS = frozenset(get_args(kind.model_fields["kind"].annotation)[0] for kind in OPENERS)


def open_source(source: Source, around: Surroundings) -> Generator[Candidate]:
    """The source's candidates, ordered by hash, so that any prefix is a fair pick.

    Raises:
        MissingSource: the source is not on this machine.
    """
    return OPENERS[type(source)](source, around)

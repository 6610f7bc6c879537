"""Pictures made on the spot by a packaged generator."""

import io
from collections.abc import Generator
from typing import Literal

from pydantic import Field

from mirage.declarations import SourceBase
from mirage.errors import BuildError
from mirage.sources.candidate import Candidate, MissingSource, Surroundings


class GeneratorSource(SourceBase):
    """Pictures made on the spot by a packaged generator."""

    kind: Literal["generator"]
    model: str = Field(description="name known to mirage.generators")
    count: int = Field(ge=1)
    seed: int = Field(default=0, ge=0)
    side_px: int = Field(default=1024, ge=64, le=1024)


def open_generator(source: GeneratorSource, around: Surroundings) -> Generator[Candidate]:
    """Pictures made on the spot, stored without loss; nothing is made when all are finished."""
    from mirage.generators import generate, picture_name

    names = [picture_name(source.model, source.seed, index) for index in range(source.count)]
    if all(name in around.finished for name in names):
        yield from map(Candidate, names)
        return
    try:
        pictures = generate(source.model, source.count, source.seed, side_px=source.side_px)
    except BuildError as error:
        raise MissingSource(f"source {source.name}: {error}") from error
    for name, image in pictures:
        if name in around.finished:
            yield Candidate(name)
            continue
        buffer = io.BytesIO()
        image.convert("RGB").save(buffer, "PNG", compress_level=1)
        yield Candidate(name, buffer.getvalue())

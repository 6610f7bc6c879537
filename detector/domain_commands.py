"""The command that labels domains; everything heavy is imported when it runs."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detector.errors import DetectorError
from detector.progress import draw_progress

if TYPE_CHECKING:
    from detector.domains import DomainReport


class DomainMethod(StrEnum):
    """Who labels."""

    HEAD = "head"
    ZERO_SHOT = "zero-shot"


def register(app: typer.Typer) -> None:
    """Add the domain command to `app`."""
    app.command("domains")(domains)


def domains(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Data set built by `omniaid mirage build`.")],
    method: Annotated[
        DomainMethod,
        typer.Option(help="A classifier taught by pictures of known domain, or a contrastive model."),
    ],
    model: Annotated[
        str, typer.Option(help="zero-shot: a name of open_clip, hf-hub:owner/name or local-dir:folder.")
    ] = "ViT-B-32",
    weights: Annotated[
        str | None, typer.Option(help="zero-shot: a checkpoint file, or the hub's tag of the weights.")
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(help="head: training recipe: backbone, views, caps; default: the shipped model's."),
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option(
            help="head: folder of cached features, such as the run folder of the same recipe; default: "
            "domain-features in DIR, about 0.3 MB per picture, which may be deleted afterwards."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many pictures per source and label, picked by hash.")
    ] = None,
    confidence: Annotated[
        float, typer.Option(min=0, max=1, help="Below this probability a picture stays `mixed`.")
    ] = 0.5,
) -> None:
    """Label the pictures of DIR by domain: domains.parquet, which `omniaid train` uses, and domains.json.

    Domains that the recipe names stay as they are; they show how far the labels agree.
    """
    try:
        from detector.domains import DomainSettings, label_domains
        from detector.recipe import read_recipe

        settings = DomainSettings(
            confidence=confidence,
            limit=limit,
            recipe=None if recipe is None else read_recipe(recipe),
            features=features,
            model=model,
            weights=weights,
        )
        with draw_progress() as show:
            report = label_domains(folder, method.value, settings, show)
    except ImportError as error:
        raise DetectorError(f"domain labels need {error.name}; run: pip install 'omniaid[train]'") from error
    for line in summarise(report):
        print(line)


def summarise(report: "DomainReport") -> Iterator[str]:
    """The report in a few lines for a person."""
    yield f"{report.pictures} pictures labelled by {report.method} ({report.model}): {_list(report.counts)}"
    for label, counts in report.mixed.items():
        if any(counts.values()):
            yield f"without a domain in the recipe, {label}: {_list(counts)}"
    if agreement := report.agreement:
        recall = ", ".join(
            f"{name} {table['accuracy']:.2f} ({table['sources']} sources)"
            for name, table in agreement["per_domain"].items()
        )
        yield (
            f"agreement with the recipe: {agreement['accuracy']:.3f} of {agreement['pictures']} pictures; "
            f"recall {recall}"
        )
        if agreement["decided"]:
            yield (
                f"of the {agreement['decided']} at or above confidence {report.confidence:g}: "
                f"{agreement['accuracy_decided']:.3f}"
            )
    if other := report.cross_agreement:
        kappa = "undefined" if other["kappa"] is None else f"{other['kappa']:.3f}"
        yield (
            f"agreement with {other['other']}: {other['same']} of {other['both_decided']} pictures that both "
            f"decided, kappa {kappa}"
        )


def _list(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())

"""The IPTC vocabulary of digital source types, and what each one claims."""

from detector.evidence.findings import Claim

# Source: IPTC NewsCodes, https://cv.iptc.org/newscodes/digitalsourcetype/, and C2PA 2.x for the last two.
PREFIXES = (
    "http://cv.iptc.org/newscodes/digitalsourcetype/",
    "https://cv.iptc.org/newscodes/digitalsourcetype/",
    "http://c2pa.org/digitalsourcetype/",
    "https://c2pa.org/digitalsourcetype/",
)
CLAIMS: dict[str, tuple[Claim, str]] = {
    "trainedAlgorithmicMedia": ("made_by_ai", "made by a trained algorithm"),
    "compositeWithTrainedAlgorithmicMedia": (
        "edited_with_ai",
        "a composite with parts made by a trained algorithm",
    ),
    "compositeSynthetic": ("edited_with_ai", "a composite with synthetic parts"),
    "algorithmicMedia": ("made_by_algorithm", "made by an algorithm that was not trained on samples"),
    "algorithmicallyEnhanced": ("edited", "a capture enhanced by an algorithm"),
    "dataDrivenMedia": ("made_by_algorithm", "drawn from data"),
    "digitalArt": ("made_by_people", "digital art made by a person"),
    "digitalCreation": ("made_by_people", "made by a person with digital tools"),
    "softwareImage": ("made_by_people", "made by a person with software"),
    "virtualRecording": ("made_by_algorithm", "a recording of a virtual scene"),
    "screenCapture": ("captured", "a capture of a screen"),
    "digitalCapture": ("captured", "captured by a digital device"),
    "computationalCapture": ("captured", "captured by a device that computes from several exposures"),
    "compositeCapture": ("captured", "a composite of captures"),
    "negativeFilm": ("captured", "digitised from negative film"),
    "positiveFilm": ("captured", "digitised from positive film"),
    "print": ("captured", "digitised from a print"),
    "humanEdits": ("edited", "a capture edited by a person"),
    "minorHumanEdits": ("edited", "a capture with minor edits by a person"),
    "composite": ("edited", "a composite of several elements"),
    "empty": ("none", "an empty canvas"),
    "trainedAlgorithmicData": ("none", "data made by a trained algorithm"),
}


def short_name(uri: str) -> str | None:
    """The vocabulary's name for a source type given as URI or bare name; None when it is not one of it."""
    name = uri.strip()
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name if name in CLAIMS else None

"""The one schema that the scanner, the REST API and the web page share."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Verdict = Literal["ai", "real", "uncertain", "out_of_scope"]


class ModelIdentity(BaseModel):
    """Which model gave a verdict."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    version: str
    sha256: str = Field(description="of the ONNX weights file, hexadecimal")


class Stability(BaseModel):
    """What becomes of the verdict when the decoded pixels are encoded again or resized."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    probabilities: dict[str, float] = Field(description="re-encoding -> probability of AI")
    spread: float = Field(ge=0, le=1, description="largest minus smallest, the picture as it is included")
    flips: tuple[str, ...] = Field(
        default=(), description="re-encodings with another verdict than the picture as it is"
    )


class ImageReport(BaseModel):
    """Everything known about one input. One input gives one report, readable or not.

    Optional fields are None when `status` is `error` and the value was never reached.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal["1"] = "1"
    path: str = Field(description="as given; bytes that are not UTF-8 appear as \\xNN escapes")
    sha256: str | None = Field(default=None, description="of the file's bytes, hexadecimal")
    status: Literal["ok", "error"]
    error: str | None = Field(default=None, description="one sentence, only when status is error")
    verdict: Verdict | None = None
    reasons: tuple[str, ...] = Field(default=(), description="why this verdict, one plain sentence each")
    probability: float | None = Field(
        default=None, ge=0, le=1, description="calibrated probability of AI; means nothing when out of scope"
    )
    calibrated: bool = Field(default=False, description="whether probability was calibrated on held-out data")
    threshold: float | None = Field(default=None, description="`ai` at or above this probability")
    threshold_real: float | None = Field(default=None, description="`real` at or below this probability")
    threshold_source: str | None = Field(
        default=None, description="the model card, or a person's own thresholds file"
    )
    gates: dict[str, float] = Field(
        default_factory=dict, description="expert name -> weight, mean over views"
    )
    view_probabilities: dict[str, float] = Field(
        default_factory=dict, description="view -> probability of AI"
    )
    view_spread: float | None = Field(
        default=None, ge=0, le=1, description="largest minus smallest of the views' probabilities"
    )
    interval: tuple[float, float] | None = Field(
        default=None,
        description="smallest and largest probability over views, and over re-encodings where asked for",
    )
    stability: Stability | None = Field(default=None, description="only when the check was asked for")
    model: ModelIdentity | None = None
    width: int | None = None
    height: int | None = None
    format: str | None = Field(default=None, description="container format, e.g. JPEG, PNG, WEBP")
    warnings: tuple[str, ...] = ()

"""What the REST API takes and gives, besides the report itself."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from detector.card import ModelCard, Thresholds
from detector.preprocess import Preprocessing
from detector.report import ImageReport

Probability = Annotated[float, Field(ge=0, le=1)]
JobStatus = Literal["queued", "running", "done", "cancelled", "failed"]
EXAMPLE_URL = "https://example.org/picture.jpg"
EXAMPLE_BASE64 = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Problem(BaseModel):
    """Why a request was refused."""

    type: str = "about:blank"
    title: str = Field(examples=["Unsupported Media Type"])
    status: int = Field(examples=[415])
    detail: str = Field(examples=["the bytes are not a picture of a supported format"])
    instance: str = Field(description="path of the request", examples=["/v1/images"])
    request_id: str = Field(description="the same as the X-Request-ID header")


class Health(BaseModel):
    """The process answers."""

    status: str = "ok"


class Ready(BaseModel):
    """A picture was scored just now."""

    status: str = "ready"
    model: str = Field(description="name and version")


class ModelSummary(BaseModel):
    """The part of a model's card a caller needs."""

    name: str
    version: str
    sha256: str
    experts: tuple[str, ...]
    preprocessing: Preprocessing
    thresholds: Thresholds
    min_side_px: int
    limits: tuple[str, ...]


class ModelList(BaseModel):
    """The models this server scores with."""

    models: tuple[ModelSummary, ...]


class BatchItem(BaseModel):
    """What came of one picture of a batch: a report or a problem."""

    index: int = Field(description="place in the request, from 0")
    name: str
    report: ImageReport | None = None
    problem: Problem | None = None
    cached: bool = False


class BatchResult(BaseModel):
    """What came of every picture of a batch, in the order of the request."""

    schema_version: Literal["1"] = "1"
    items: list[BatchItem]
    counts: dict[str, int] = Field(description="pictures by verdict, and `error`")


class JobView(BaseModel):
    """A job as its owner sees it."""

    schema_version: Literal["1"] = "1"
    id: str
    status: JobStatus
    total: int = Field(description="pictures")
    scored: int = Field(description="pictures with a report, errors included")
    created_at: float = Field(description="seconds since 1970")
    finished_at: float | None = None
    keep_uploads: bool = False
    webhook_state: Literal["pending", "delivered", "failed"] | None = None


class JobPage(BaseModel):
    """Some jobs, latest first."""

    jobs: list[JobView]
    next_cursor: str | None = Field(default=None, description="for the page after this one, if there is one")


class PreviewRequest(BaseModel):
    """Probabilities of pictures whose truth is known."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"real": [0.02, 0.1, 0.4, 0.07], "false_positive_rate": 0.25}]},
    )

    real: list[Probability] = Field(
        min_length=1, max_length=100_000, description="probabilities that real pictures got"
    )
    ai: list[Probability] = Field(
        default=[], max_length=100_000, description="probabilities that AI pictures got"
    )
    false_positive_rate: float = Field(
        default=0.01, ge=1e-6, lt=1, description="share of real pictures that may reach the threshold"
    )


class Preview(BaseModel):
    """A threshold and what it would have done."""

    threshold: float = Field(description="`ai` at or above")
    current_threshold: float
    false_positive_rate: float = Field(description="share of the real pictures at or above the threshold")
    false_positive_rate_upper: float = Field(
        description="the true rate is below this with 95% confidence (Clopper-Pearson)"
    )
    current_false_positive_rate: float
    true_positive_rate: float | None = Field(
        default=None, description="share of the AI pictures found, when there are any"
    )
    warning: str | None = None


def summarise(card: ModelCard) -> ModelSummary:
    """The public summary of `card`."""
    return ModelSummary(**{name: getattr(card, name) for name in ModelSummary.model_fields})


def one_picture_body() -> dict[str, Any]:
    """The OpenAPI description of a body with one picture."""
    text = {
        "url": {"type": "string", "format": "uri"},
        "base64": {"type": "string"},
        "name": {"type": "string"},
    }
    ways = {
        "type": "object",
        "properties": text,
        "additionalProperties": False,
        "oneOf": [{"required": ["url"]}, {"required": ["base64"]}],
    }
    examples = {
        "url": {"summary": "A picture on the web", "value": {"url": EXAMPLE_URL}},
        "base64": {"summary": "A picture in the request", "value": {"base64": EXAMPLE_BASE64}},
    }
    upload = {
        "type": "object",
        "properties": {"file": {"type": "string", "format": "binary"}},
        "required": ["file"],
    }
    return _body(upload, ways, examples)


def many_pictures_body(max_items: int, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """The OpenAPI description of a body with several pictures, and options besides."""
    options = options or {}
    item = {"type": "object", "properties": {name: {"type": "string"} for name in ("url", "base64", "name")}}
    many = {"type": "array", "items": item, "minItems": 1, "maxItems": max_items}
    ways = {
        "type": "object",
        "properties": {"items": many, **options},
        "required": ["items"],
        "additionalProperties": False,
    }
    files = {"type": "array", "items": {"type": "string", "format": "binary"}, "maxItems": max_items}
    upload = {"type": "object", "properties": {"file": files, **options}, "required": ["file"]}
    value = {"items": [{"url": EXAMPLE_URL}, {"base64": EXAMPLE_BASE64, "name": "dot.png"}]}
    return _body(upload, ways, {"mixed": {"summary": "One of each", "value": value}})


def _body(upload: dict[str, Any], ways: dict[str, Any], examples: dict[str, Any]) -> dict[str, Any]:
    content = {
        "multipart/form-data": {"schema": upload},
        "application/json": {"schema": ways, "examples": examples},
    }
    return {"requestBody": {"required": True, "content": content}}

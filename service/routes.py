"""The REST API, version 1: one picture in, one report out."""

from http import HTTPStatus

from fastapi import APIRouter, FastAPI, HTTPException, Request, UploadFile
from pydantic import BaseModel, Field
from starlette.datastructures import UploadFile as SentFile

from detector.card import ModelCard, Thresholds
from detector.preprocess import Preprocessing
from detector.report import ImageReport
from service.envelope import too_large
from service.pictures import is_picture
from service.problems import responses
from service.scorer import Scorer
from service.settings import Settings

FIELD = "file"
UNNAMED = "upload"


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


def summarise(card: ModelCard) -> ModelSummary:
    """The public summary of `card`."""
    return ModelSummary(**{name: getattr(card, name) for name in ModelSummary.model_fields})


def make_router(scorer: Scorer, settings: Settings) -> APIRouter:
    """The routes that score with `scorer` under the limits of `settings`."""
    router = APIRouter()

    @router.post(
        "/v1/images",
        summary="Score one picture",
        response_model=ImageReport,
        responses=responses(400, 413, 415, 422),
        tags=["score"],
    )
    async def score_image(request: Request, file: UploadFile) -> ImageReport:
        """Upload one picture as the multipart field `file`. The picture is scored in memory and not kept."""
        data = await _read_one(request, settings.max_upload_bytes)
        report = await scorer.score(data, file.filename or UNNAMED)
        if report.status == "error":
            known = is_picture(data)
            status = HTTPStatus.UNPROCESSABLE_ENTITY if known else HTTPStatus.UNSUPPORTED_MEDIA_TYPE
            raise HTTPException(status, report.error)
        return report

    @router.get("/v1/models", summary="The models in use", tags=["models"])
    async def list_models() -> ModelList:
        """Name, version, experts, thresholds and known limits of each model."""
        return ModelList(models=(summarise(scorer.card),))

    @router.get("/health", summary="Is the process alive?", tags=["operation"])
    async def health() -> Health:
        """Always 200 while the process can answer; scores nothing."""
        return Health()

    @router.get("/ready", summary="Can pictures be scored now?", responses=responses(503), tags=["operation"])
    async def ready() -> Ready:
        """Scores a tiny built-in picture; 503 when that fails or takes too long."""
        try:
            report = await scorer.probe(settings.ready_timeout_s)
        except TimeoutError as error:
            detail = f"no picture was scored within {settings.ready_timeout_s:g} s"
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, detail) from error
        if report.status == "error":
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, f"the probe was not scored: {report.error}")
        return Ready(model=f"{scorer.card.name} {scorer.card.version}")

    return router


async def _read_one(request: Request, max_upload_bytes: int) -> bytes:
    files = (await request.form()).getlist(FIELD)
    if len(files) != 1:
        raise HTTPException(
            HTTPStatus.BAD_REQUEST, f"{len(files)} fields named {FIELD!r} were sent; send exactly one"
        )
    sent = files[0]
    if not isinstance(sent, SentFile):
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"the field {FIELD!r} is text; send a file")
    data = await sent.read()
    if len(data) > max_upload_bytes:
        raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, too_large(max_upload_bytes))
    return data


def register_unknown(app: FastAPI) -> None:
    """Answer unknown paths under /v1 as problems, before the page's own routes see them."""

    @app.api_route(
        "/v1/{rest:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False
    )
    async def unknown(request: Request, rest: str) -> None:
        path = request.url.path
        allowed = sorted(method.upper() for method in app.openapi()["paths"].get(path, {}))
        if allowed:
            detail = f"{request.method} is not allowed on {path}; allowed: {', '.join(allowed)}"
            raise HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, detail, {"Allow": ", ".join(allowed)})
        raise HTTPException(HTTPStatus.NOT_FOUND, f"{path} does not exist; see /docs")

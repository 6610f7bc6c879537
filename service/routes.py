"""The REST API, version 1: models, thresholds and operation; scoring and jobs have modules of their own."""

from http import HTTPStatus

from anyio import to_thread
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from sqlalchemy import select

from detector.card import ModelCard
from service.database import schema
from service.drain import Drain
from service.job_routes import make_job_router
from service.keys import Caller
from service.parts import Parts
from service.preview import preview_threshold
from service.problems import responses
from service.schemas import Health, ModelList, Preview, PreviewRequest, Ready, summarise
from service.score_routes import make_score_router

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def make_router(parts: Parts, drain: Drain) -> APIRouter:
    """Every route of the API."""
    router = APIRouter()
    for part in (make_score_router(parts), make_job_router(parts), _models(parts), _operation(parts, drain)):
        router.include_router(part)
    return router


def _models(parts: Parts) -> APIRouter:
    router = APIRouter(tags=["models"])
    caller_for = Depends(parts.access.to(None))
    card = parts.scorer.card

    @router.get("/v1/models", summary="The models in use", responses=responses(401, 429))
    async def list_models(caller: Caller = caller_for) -> ModelList:
        """Name, version, experts, thresholds and known limits of each model."""
        return ModelList(models=(summarise(card),))

    @router.get(
        "/v1/models/{name}",
        summary="The card of a model",
        response_model=ModelCard,
        responses={304: {"description": "the card did not change"}, **responses(401, 404, 429)},
    )
    async def get_model(request: Request, name: str, caller: Caller = caller_for) -> Response:
        """How the model was made, how well it does, where it fails; If-None-Match is honoured."""
        if name != card.name:
            raise HTTPException(
                HTTPStatus.NOT_FOUND, f"there is no model {name[:100]!r}; there is: {card.name}"
            )
        headers = {"ETag": f'"{card.sha256[:32]}"', "Cache-Control": "private, no-cache"}
        if headers["ETag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(card.model_dump_json(), media_type="application/json", headers=headers)

    @router.post(
        "/v1/thresholds/preview", summary="Try a threshold", responses=responses(400, 401, 413, 422, 429)
    )
    async def preview(wanted: PreviewRequest, caller: Caller = caller_for) -> Preview:
        """The threshold that keeps the share of your own real pictures called `ai` below a rate.

        Send the probabilities that your reference pictures got. Nothing changes on the server.
        """
        return preview_threshold(wanted, card.thresholds)

    return router


def _operation(parts: Parts, drain: Drain) -> APIRouter:
    router = APIRouter(tags=["operation"])
    timeout_s = parts.settings.ready_timeout_s

    @router.get("/health", summary="Is the process alive?")
    async def health() -> Health:
        """Always 200 while the process can answer; scores nothing."""
        return Health()

    @router.get("/ready", summary="Can pictures be scored now?", responses=responses(503))
    async def ready() -> Ready:
        """Scores a tiny built-in picture; 503 when that fails or takes too long, and before the end."""
        if drain.begun:
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, "the server is about to stop")
        try:
            report = await parts.scorer.probe(timeout_s)
        except TimeoutError as error:
            detail = f"no picture was scored within {timeout_s:g} s"
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, detail) from error
        if report.status == "error":
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, f"the probe was not scored: {report.error}")
        await to_thread.run_sync(_touch, parts)
        return Ready(model=f"{parts.scorer.card.name} {parts.scorer.card.version}")

    guard = [Depends(parts.access.to("metrics"))] if parts.settings.require_keys else []

    @router.get(
        "/metrics", summary="Numbers for Prometheus", dependencies=guard, responses=responses(401, 403)
    )
    async def metrics() -> Response:
        """Latency, queue, verdicts and drift of the scores, in Prometheus' text format."""
        text = await to_thread.run_sync(parts.metrics.text)
        return Response(text, headers={"Content-Type": METRICS_TYPE})

    return router


def _touch(parts: Parts) -> None:
    with parts.engine.connect() as connection:
        connection.execute(select(schema.c.version))


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

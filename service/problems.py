"""Errors on the wire: application/problem+json (RFC 9457), one shape for every refusal."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from mirage.errors import BuildError
from service.limits import LimitReached
from service.schemas import Problem
from service.scorer import Overloaded

MEDIA_TYPE = "application/problem+json"
BUSY_RETRY_S = 2


def make_problem(scope: Any, status: int, detail: str) -> Problem:
    """The problem of a request, or of one item in it.

    Args:
        scope: the request's ASGI scope; its state carries the request id.
        status: HTTP status code, 400 or above.
        detail: one sentence on what was wrong and what is allowed.
    """
    return Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        instance=scope["path"],
        request_id=scope.get("state", {}).get("request_id", ""),
    )


def problem(scope: Any, status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    """The response that refuses a request; see `make_problem`. The headers are sent as well."""
    body = make_problem(scope, status, detail).model_dump()
    return JSONResponse(body, status, headers=headers, media_type=MEDIA_TYPE)


def responses(*codes: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries that declare a problem for each status code."""
    schema = {"schema": Problem.model_json_schema()}
    return {code: {"description": HTTPStatus(code).phrase, "content": {MEDIA_TYPE: schema}} for code in codes}


def refusal_of(error: Exception) -> tuple[int, str, dict[str, str]] | None:
    """Status, sentence and headers for an error that is no bug; None for any other."""
    for kind, answer in ANSWERS.items():
        if isinstance(error, kind):
            return answer(error)
    return None


def _http(error: Any) -> tuple[int, str, dict[str, str]]:
    return error.status_code, str(error.detail), dict(error.headers or {})


def _limit(error: Any) -> tuple[int, str, dict[str, str]]:
    return HTTPStatus.TOO_MANY_REQUESTS, str(error), {"Retry-After": str(error.retry_after_s)}


def _busy(detail: str | None = None) -> Callable[[Any], tuple[int, str, dict[str, str]]]:
    def answer(error: Any) -> tuple[int, str, dict[str, str]]:
        return HTTPStatus.SERVICE_UNAVAILABLE, detail or str(error), {"Retry-After": str(BUSY_RETRY_S)}

    return answer


def _input(error: Any) -> tuple[int, str, dict[str, str]]:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return HTTPStatus.BAD_REQUEST, f"{where}: {first['msg']}", {}


ANSWERS: dict[type[Exception], Callable[[Any], tuple[int, str, dict[str, str]]]] = {
    HTTPException: _http,
    RequestValidationError: _input,
    LimitReached: _limit,
    Overloaded: _busy(),
    TimeoutError: _busy("the answer took too long; try again in a moment"),
    OperationalError: _busy("the database does not answer; try again in a moment"),
    BuildError: _busy("no decoder can be started; try again in a moment"),
}


def register_problems(app: FastAPI) -> None:
    """Make `app` answer its own and its visitors' errors as problems."""

    async def refuse(request: Request, error: Exception) -> Response:
        refusal = refusal_of(error)
        if refusal is None:
            raise error
        status, detail, headers = refusal
        return problem(request.scope, status, detail, headers)

    for kind in ANSWERS:
        app.add_exception_handler(kind, refuse)

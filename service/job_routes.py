"""Jobs over REST: create, poll, list, cancel, delete, and the result as JSON Lines or CSV."""

import io
from collections.abc import Iterator
from http import HTTPStatus
from typing import Annotated, Any, Literal, NoReturn

from anyio import to_thread
from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from sqlalchemy import Row

from detector.output import CsvWriter, JsonlWriter
from service.fetching import check_url
from service.idempotency import fingerprint
from service.intake import Sent, read_many
from service.jobs import OPEN, Source
from service.keys import Caller
from service.parts import Parts
from service.problems import responses
from service.schemas import JobPage, JobStatus, JobView, many_pictures_body

OPTIONS: dict[str, Any] = {
    "webhook_url": {
        "type": "string",
        "format": "uri",
        "description": "gets a signed POST when the job is over",
    },
    "keep_uploads": {
        "type": "boolean",
        "default": False,
        "description": "keep the pictures until the job is deleted",
    },
}
TRUTHS = {"true": True, "1": True, "false": False, "0": False, True: True, False: False}
FORMATS: dict[str, tuple[Any, str]] = {
    "jsonl": (JsonlWriter, "application/jsonl"),
    "csv": (CsvWriter, "text/csv; charset=utf-8"),
}
JobId = Annotated[str, Path(pattern="^[0-9a-f]{31}$")]


def make_job_router(parts: Parts) -> APIRouter:
    """The routes of jobs."""
    router = APIRouter(tags=["jobs"])
    caller_for = Depends(parts.access.to("jobs"))
    _add_creation(router, caller_for, parts)
    _add_reading(router, caller_for, parts)
    _add_ending(router, caller_for, parts)
    return router


def _add_creation(router: APIRouter, caller_for: Any, parts: Parts) -> None:
    settings = parts.settings

    @router.post(
        "/v1/jobs",
        summary="Score many pictures later",
        status_code=202,
        response_model=JobView,
        responses=responses(400, 401, 403, 409, 413, 415, 422, 429, 503),
        openapi_extra=many_pictures_body(settings.max_job_items, OPTIONS),
    )
    async def create_job(request: Request, caller: Caller = caller_for) -> Response:
        """Send pictures like a batch; poll the job at its Location, or name a `webhook_url`.

        Pictures are kept until they are scored, and then deleted unless `keep_uploads` is true.
        """
        order = await read_many(request, settings.max_job_items, settings.max_upload_bytes, tuple(OPTIONS))
        webhook_url, keep = _webhook(order.options, parts), _truth(order.options.get("keep_uploads", False))
        sources = [_source(index, sent) for index, sent in enumerate(order.pictures)]

        async def answer() -> Response:
            await parts.access.charge(caller, len(sources))
            identity = await to_thread.run_sync(parts.jobs.create, caller.id, sources, webhook_url, keep)
            await to_thread.run_sync(parts.audit.add, caller.id, "job create", identity)
            await to_thread.run_sync(parts.foreman.announce)
            view = await _find(parts, identity, caller)
            headers = {"Location": f"/v1/jobs/{identity}"}
            return Response(
                view.model_dump_json(), HTTPStatus.ACCEPTED, headers=headers, media_type="application/json"
            )

        content = fingerprint(order.pictures, order.options)
        return await parts.idempotency.once(request, caller, content, answer)


def _add_reading(router: APIRouter, caller_for: Any, parts: Parts) -> None:
    @router.get(
        "/v1/jobs",
        summary="Your jobs",
        responses=responses(400, 401, 403, 429),
    )
    async def list_jobs(
        response: Response,
        caller: Caller = caller_for,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        cursor: Annotated[
            str | None, Query(pattern="^[0-9a-f]{31}$", description="from `next_cursor`")
        ] = None,
        status: JobStatus | None = None,
    ) -> JobPage:
        """Jobs of this key, latest first; follow `next_cursor`, or the Link header, to older ones."""
        rows = await to_thread.run_sync(parts.jobs.page, caller.id, limit + 1, cursor, status)
        shown = rows[:limit]
        following = shown[-1].id if len(rows) > limit else None
        if following is not None:
            chosen = f"&status={status}" if status else ""
            response.headers["Link"] = f'</v1/jobs?limit={limit}&cursor={following}{chosen}>; rel="next"'
        return JobPage(jobs=[_view(row) for row in shown], next_cursor=following)

    @router.get("/v1/jobs/{job}", summary="One job", responses=responses(400, 401, 403, 404, 429))
    async def get_job(job: JobId, caller: Caller = caller_for) -> JobView:
        """Status and progress."""
        return await _find(parts, job, caller)

    @router.get(
        "/v1/jobs/{job}/results",
        summary="The reports of a job",
        response_class=StreamingResponse,
        responses={
            200: {"content": {"application/jsonl": {}, "text/csv": {}}, "description": "one row per picture"},
            **responses(400, 401, 403, 404, 409, 429),
        },
    )
    async def job_results(
        job: JobId, caller: Caller = caller_for, format: Literal["jsonl", "csv"] = "jsonl"
    ) -> Response:
        """One row per picture in the order they were sent; of a cancelled job, those there are."""
        view = await _find(parts, job, caller)
        if view.status in OPEN:
            raise HTTPException(
                HTTPStatus.CONFLICT, f"the job is {view.status}, {view.scored} of {view.total} are scored"
            )
        return StreamingResponse(_rows(parts, job, format), media_type=FORMATS[format][1])


def _add_ending(router: APIRouter, caller_for: Any, parts: Parts) -> None:
    @router.post(
        "/v1/jobs/{job}/cancel", summary="Cancel a job", responses=responses(400, 401, 403, 404, 409, 429)
    )
    async def cancel_job(job: JobId, caller: Caller = caller_for) -> JobView:
        """No further picture is scored; reports there are stay."""
        if not await to_thread.run_sync(parts.jobs.cancel, job, caller.id):
            view = await _find(parts, job, caller)
            raise HTTPException(HTTPStatus.CONFLICT, f"the job is {view.status} and cannot be cancelled")
        await to_thread.run_sync(parts.audit.add, caller.id, "job cancel", job)
        return await _find(parts, job, caller)

    @router.delete(
        "/v1/jobs/{job}",
        summary="Delete a job",
        status_code=204,
        responses=responses(400, 401, 403, 404, 429),
    )
    async def delete_job(job: JobId, caller: Caller = caller_for) -> None:
        """Delete the job with its pictures and reports, finished or not."""
        if not await to_thread.run_sync(parts.jobs.remove, job, caller.id):
            _unknown(job)
        await to_thread.run_sync(parts.audit.add, caller.id, "job delete", job)


def _rows(parts: Parts, job: str, format_: str) -> Iterator[str]:
    buffer = io.StringIO()
    writer = FORMATS[format_][0](buffer, parts.scorer.card)
    for report in parts.jobs.results(job):
        writer.write(report)
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


async def _find(parts: Parts, job: str, caller: Caller) -> JobView:
    row = await to_thread.run_sync(parts.jobs.get, job, caller.id)
    if row is None:
        _unknown(job)
    return _view(row)


def _view(row: Row[Any]) -> JobView:
    return JobView(**{name: getattr(row, name) for name in JobView.model_fields if name != "schema_version"})


def _unknown(job: str) -> NoReturn:
    raise HTTPException(HTTPStatus.NOT_FOUND, f"there is no job {job} of yours")


def _source(index: int, sent: Sent) -> Source:
    if sent.fault is not None:
        status, sentence = sent.fault
        raise HTTPException(status, f"picture {index}: {sentence}")
    return Source(sent.name, sent.data, sent.url)


def _webhook(options: dict[str, Any], parts: Parts) -> str | None:
    url = options.get("webhook_url")
    if url is None:
        return None
    if parts.settings.webhook_secret is None:
        sentence = "this server sends no webhooks: it has no OMNIAID_WEBHOOK_SECRET"
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, sentence)
    try:
        check_url(str(url))
    except ValueError as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"the field 'webhook_url': {error}") from error
    return str(url)


def _truth(value: Any) -> bool:
    try:
        return TRUTHS[value.lower() if isinstance(value, str) else value]
    except (KeyError, TypeError) as error:
        raise HTTPException(
            HTTPStatus.BAD_REQUEST, "the field 'keep_uploads' must be true or false"
        ) from error

"""The API's calls as values: what to send, and how to read the answer. Both clients share them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import httpx

from detector.card import ModelCard
from detector.report import ImageReport
from service.schemas import BatchResult, JobPage, JobView, ModelList, Preview, Problem

Answer = TypeVar("Answer")
Picture = bytes | str | Path  # bytes and files are sent, text is a URL
OPEN = ("queued", "running")


class ApiProblem(Exception):
    """The server refused a request.

    Attributes:
        problem: why.
        retry_after_s: when to try again, if the server says so.
    """

    def __init__(self, problem: Problem, retry_after_s: float | None) -> None:
        super().__init__(f"{problem.status} {problem.title}: {problem.detail}")
        self.problem = problem
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Call(Generic[Answer]):
    """One request and how its answer is read."""

    method: str
    path: str
    read: Callable[[httpx.Response], Answer]
    options: dict[str, Any] = field(default_factory=dict)

    def answer(self, response: httpx.Response) -> Answer:
        """The answer in the response.

        Raises:
            ApiProblem: the server refused.
        """
        if response.is_success:
            return self.read(response)
        wait = response.headers.get("retry-after", "")
        raise ApiProblem(_problem(response), float(wait) if wait.isdecimal() else None)


def score(picture: Picture, key: str | None = None) -> Call[ImageReport]:
    """Score one picture; `key` is an Idempotency-Key."""
    body: dict[str, Any] = (
        {"json": {"url": picture}} if isinstance(picture, str) else {"files": [_part(picture)]}
    )
    return Call("POST", "/v1/images", _model(ImageReport), body | _headers(key))


def batch(pictures: Sequence[Picture], key: str | None = None) -> Call[BatchResult]:
    """Score up to 100 pictures, all of them sent or all of them URLs."""
    return Call("POST", "/v1/batches", _model(BatchResult), _many(pictures, {}) | _headers(key))


def create_job(
    pictures: Sequence[Picture],
    webhook_url: str | None = None,
    keep_uploads: bool = False,
    key: str | None = None,
) -> Call[JobView]:
    """Score many pictures later."""
    options: dict[str, Any] = {"keep_uploads": keep_uploads}
    if webhook_url is not None:
        options["webhook_url"] = webhook_url
    return Call("POST", "/v1/jobs", _model(JobView), _many(pictures, options) | _headers(key))


def get_job(job: str) -> Call[JobView]:
    """Status of a job."""
    return Call("GET", f"/v1/jobs/{job}", _model(JobView))


def list_jobs(cursor: str | None = None, limit: int = 20) -> Call[JobPage]:
    """A page of jobs, latest first."""
    params = {"limit": limit} | ({"cursor": cursor} if cursor else {})
    return Call("GET", "/v1/jobs", _model(JobPage), {"params": params})


def cancel_job(job: str) -> Call[JobView]:
    """Cancel a job."""
    return Call("POST", f"/v1/jobs/{job}/cancel", _model(JobView))


def delete_job(job: str) -> Call[None]:
    """Delete a job with its pictures and reports."""
    return Call("DELETE", f"/v1/jobs/{job}", lambda response: None)


def job_reports(job: str) -> Call[list[ImageReport]]:
    """The reports of a job that is over."""
    return Call("GET", f"/v1/jobs/{job}/results", _lines)


def models() -> Call[ModelList]:
    """The models in use."""
    return Call("GET", "/v1/models", _model(ModelList))


def model_card(name: str) -> Call[ModelCard]:
    """The card of a model."""
    return Call("GET", f"/v1/models/{name}", _model(ModelCard))


def preview_threshold(
    real: Sequence[float], ai: Sequence[float] = (), false_positive_rate: float = 0.01
) -> Call[Preview]:
    """The threshold for a false-positive rate on your own reference pictures."""
    body = {"real": list(real), "ai": list(ai), "false_positive_rate": false_positive_rate}
    return Call("POST", "/v1/thresholds/preview", _model(Preview), {"json": body})


def client_options(url: str, key: str | None, timeout_s: float) -> dict[str, Any]:
    """What an httpx client is made with."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return {"base_url": url, "headers": headers, "timeout": timeout_s}


def _model(kind: Any) -> Callable[[httpx.Response], Any]:
    return lambda response: kind.model_validate_json(response.content)


def _lines(response: httpx.Response) -> list[ImageReport]:
    return [ImageReport.model_validate_json(line) for line in response.iter_lines() if line]


def _part(picture: bytes | Path) -> tuple[str, tuple[str, bytes]]:
    if isinstance(picture, bytes):
        return "file", ("upload", picture)
    return "file", (picture.name, picture.read_bytes())


def _many(pictures: Sequence[Picture], options: dict[str, Any]) -> dict[str, Any]:
    sent = [picture for picture in pictures if not isinstance(picture, str)]
    if not sent:
        return {"json": {"items": [{"url": url} for url in pictures], **options}}
    if len(sent) != len(pictures):
        raise ValueError(
            f"{len(sent)} pictures are data and {len(pictures) - len(sent)} are URLs; send one kind"
        )
    data = {name: str(value).lower() if isinstance(value, bool) else value for name, value in options.items()}
    return {"files": [_part(picture) for picture in sent], "data": data}


def _headers(key: str | None) -> dict[str, Any]:
    return {"headers": {"Idempotency-Key": key}} if key else {}


def _problem(response: httpx.Response) -> Problem:
    if response.headers.get("content-type", "").startswith("application/problem+json"):
        return Problem.model_validate_json(response.content)
    return Problem(  # something between here and the server answered
        title=response.reason_phrase,
        status=response.status_code,
        detail="the answer is not from an OmniAID server",
        instance=response.request.url.path,
        request_id=response.headers.get("x-request-id", ""),
    )

"""The client for programs that wait."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from detector.card import ModelCard
from detector.report import ImageReport
from service.client import calls
from service.client.calls import OPEN, Call, Picture
from service.schemas import BatchResult, JobPage, JobView, ModelList, Preview

Answer = TypeVar("Answer")


class Client:
    """Blocks until the answer is there; every call may raise ApiProblem. Close it or use `with`."""

    def __init__(self, url: str, key: str | None = None, timeout_s: float = 60, **options: Any) -> None:
        """Client of the server at `url`.

        Args:
            url: e.g. "http://127.0.0.1:8000".
            key: an API key, where the server requires one.
            timeout_s: for every answer.
            options: for httpx.
        """
        self._http = httpx.Client(**calls.client_options(url, key, timeout_s), **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close kept connections."""
        self._http.close()

    def score(self, picture: Picture, key: str | None = None) -> ImageReport:
        """The report on one picture: bytes, a file, or a URL as text; `key` is an Idempotency-Key."""
        return self._send(calls.score(picture, key))

    def batch(self, pictures: Sequence[Picture], key: str | None = None) -> BatchResult:
        """A report or a problem for each of up to 100 pictures, all data or all URLs."""
        return self._send(calls.batch(pictures, key))

    def create_job(
        self,
        pictures: Sequence[Picture],
        webhook_url: str | None = None,
        keep_uploads: bool = False,
        key: str | None = None,
    ) -> JobView:
        """A new job that scores pictures later."""
        return self._send(calls.create_job(pictures, webhook_url, keep_uploads, key))

    def get_job(self, job: str) -> JobView:
        """Status and progress of a job."""
        return self._send(calls.get_job(job))

    def list_jobs(self, cursor: str | None = None, limit: int = 20) -> JobPage:
        """A page of your jobs, latest first."""
        return self._send(calls.list_jobs(cursor, limit))

    def cancel_job(self, job: str) -> JobView:
        """The job, which is cancelled now."""
        return self._send(calls.cancel_job(job))

    def delete_job(self, job: str) -> None:
        """Nothing; the job is gone with its pictures and reports."""
        self._send(calls.delete_job(job))

    def job_reports(self, job: str) -> list[ImageReport]:
        """The reports of a job that is over, in the order of its pictures."""
        return self._send(calls.job_reports(job))

    def models(self) -> ModelList:
        """The models in use."""
        return self._send(calls.models())

    def model_card(self, name: str) -> ModelCard:
        """The card of a model."""
        return self._send(calls.model_card(name))

    def preview_threshold(
        self, real: Sequence[float], ai: Sequence[float] = (), false_positive_rate: float = 0.01
    ) -> Preview:
        """The threshold for a false-positive rate on your own reference pictures."""
        return self._send(calls.preview_threshold(real, ai, false_positive_rate))

    def wait_for(self, job: str, timeout_s: float = 600, pause_s: float = 0.5) -> JobView:
        """The job when it is over.

        Raises:
            TimeoutError: it is still open after `timeout_s`.
        """
        left = timeout_s
        while (view := self.get_job(job)).status in OPEN:
            if left <= 0:
                raise TimeoutError(f"job {job} is still {view.status} after {timeout_s:g} s")
            time.sleep(pause_s)
            left -= pause_s
        return view

    def _send(self, call: Call[Answer]) -> Answer:
        response = self._http.request(call.method, call.path, **call.options)
        return call.answer(response)

"""A thin, typed client of the REST API, for programs that wait and for programs that do not."""

from service.client.asynchronous import AsyncClient
from service.client.calls import ApiProblem
from service.client.synchronous import Client

__all__ = ["ApiProblem", "AsyncClient", "Client"]

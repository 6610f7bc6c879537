"""Who may do what: API keys, scopes and limits, checked before a request's body is read."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, NoReturn

from anyio import to_thread
from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from service.keys import Caller, Keys
from service.limits import Limits
from service.settings import Settings

BEARER = HTTPBearer(auto_error=False, description="an API key, where the server requires one")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]
ANONYMOUS_SCOPES = frozenset(("score", "jobs", "metrics"))


class Access:
    """The gate in front of the routes."""

    def __init__(self, keys: Keys, limits: Limits, settings: Settings) -> None:
        self._keys = keys
        self._limits = limits
        self._settings = settings

    def to(self, scope: str | None) -> Callable[..., Awaitable[Caller]]:
        """A FastAPI dependency that gives the caller, who must have the scope (None: any key will do)."""

        async def enter(request: Request, credentials: Credentials) -> Caller:
            token = None if credentials is None else credentials.credentials
            caller = await to_thread.run_sync(self._admit, token, _address(request))
            if scope is not None and scope not in caller.scopes:
                have = ", ".join(sorted(caller.scopes))
                raise HTTPException(HTTPStatus.FORBIDDEN, f"the key lacks the scope {scope}; it has: {have}")
            request.state.caller = caller.id
            return caller

        return enter

    async def charge(self, caller: Caller, images: int) -> None:
        """Count pictures against the caller's quota.

        Raises:
            LimitReached: they are too many for this day.
        """
        await to_thread.run_sync(self._limits.count_images, caller, images)

    def _admit(self, token: str | None, address: str) -> Caller:
        caller = self._caller(token, address)
        self._limits.count_request(caller)
        return caller

    def _caller(self, token: str | None, address: str) -> Caller:
        if token is None:
            if self._settings.require_keys:
                # Guesses cost the guesser: they count against the address.
                self._limits.count_request(Caller(address))
                _refuse("this server requires an API key: send Authorization: Bearer KEY")
            return Caller(address, ANONYMOUS_SCOPES)
        caller = self._keys.find(token)
        if caller is None:
            self._limits.count_request(Caller(address))
            _refuse("the API key is wrong, expired or revoked")
        return caller


def _refuse(detail: str) -> NoReturn:
    raise HTTPException(HTTPStatus.UNAUTHORIZED, detail, {"WWW-Authenticate": "Bearer"})


def _address(request: Request) -> str:
    return f"ip:{request.client.host}" if request.client else "ip:unknown"

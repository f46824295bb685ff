"""Methods of the account: a key of the machine's user, kept where nobody else reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field

from orchestrator.config_keys import Secret
from orchestrator.gateways.app_server.messages import RpcError, bad_params
from orchestrator.gateways.app_server.method import Method, NoParams, Params, Result, Whose
from orchestrator.gateways.principals import Scope
from orchestrator.model.credentials import ApiKey, Credential, CredentialError, CredentialStore, patiently
from orchestrator.model.issuer import IssuerError

if TYPE_CHECKING:
    from orchestrator.gateways.app_server.door import Door

MOST_KEY = 4_096
T = TypeVar("T")


class AccountRead(Params):
    """The account; tokens are refreshed when they are needed."""


async def account_read(door: Door, _: AccountRead) -> Result:
    """The sign-in of the machine's user, for that user alone; no client needs one of its own."""
    kept = await kept_sign_in(door)
    return {
        "account": None if kept is None else _account(kept),
        "userId": None,
        "requiresOpenaiAuth": False,
        "workspaceRouting": None,
    }


async def kept_sign_in(door: Door) -> Credential | None:
    """The sign-in of the machine's user, for whoever sees the machine; None if there is none."""
    store = door.ports.credentials
    return await _asked(store.read) if store is not None and door.principal.sees_machine else None


def _account(kept: Credential) -> dict[str, Any]:
    if isinstance(kept, ApiKey):
        return {"type": "apiKey"}
    return {"type": "chatgpt", "email": kept.email, "planType": "unknown"}


async def _asked(ask: Callable[[], T]) -> T:
    """The store's answer; raises `RpcError` for one that does not come or is a refusal."""
    try:
        return await patiently(ask)
    except CredentialError as error:
        raise RpcError(str(error)) from None


def own_store(door: Door) -> CredentialStore:
    """The store of the machine's user; raises `RpcError` where nobody may sign in."""
    if door.ports.credentials is None:
        raise RpcError(Whose.KEYS.value)
    return door.ports.credentials


class LoginStart(Params):
    """A sign-in; its kind decides what else there is."""

    type: Literal["apiKey", "chatgpt", "chatgptDeviceCode", "chatgptAuthTokens", "amazonBedrock"]
    api_key: Annotated[str, Field(min_length=1, max_length=MOST_KEY)] | None = None


async def login_start(door: Door, params: LoginStart) -> Result:
    """Keeps a key for the providers with `auth = "login"`, or begins a sign-in at their issuer."""
    store = own_store(door)
    if params.type == "chatgpt":
        return await at_issuer(door, "account/login/completed", ("account/updated", UPDATED))
    if params.type != "apiKey":
        raise RpcError(f"a sign-in by {params.type} is not offered: sign in with a key (apiKey)")
    key = params.api_key or ""
    # It becomes a header: a line break in it would be another one.
    if not key.isascii() or not key.isprintable() or " " in key or not key:
        raise bad_params("apiKey: a key of printable ASCII characters, without spaces, is expected")
    await _asked(lambda: store.write(ApiKey(Secret(key))))
    door.notify("account/login/completed", {"loginId": None, "success": True, "error": None})
    door.notify("account/updated", {"authMode": "apikey", "planType": None})
    return {"type": "apiKey"}


UPDATED: Mapping[str, Any] = {"authMode": "chatgpt", "planType": None}


async def at_issuer(door: Door, completed: str, changed: tuple[str, Mapping[str, Any]]) -> Result:
    """Begins a sign-in at the issuer of the settings.

    When its person has come back, its end is told as `completed`, and its success as `changed`.
    """
    if door.ports.sign_in is None:
        raise RpcError(
            "there is no issuer to sign in at: set auth.issuer and auth.client_id; or sign in with a key "
            '(account/login/start {type: "apiKey"}), or give the provider\'s table an env_key'
        )

    def told(id: str, error: str | None) -> None:
        door.notify(completed, {"loginId": id, "success": error is None, "error": error})
        if error is None:
            door.notify(*changed)

    try:
        begun = await door.ports.sign_in.begin(told)
    except IssuerError as error:
        raise RpcError(str(error)) from None
    return {"type": "chatgpt", "loginId": begun.id, "authUrl": begun.url}


class LoginCancel(Params):
    """A sign-in that is to end."""

    login_id: str


async def login_cancel(door: Door, params: LoginCancel) -> Result:
    """Ends a sign-in that waits for a browser."""
    own_store(door)
    ended = door.ports.sign_in is not None and await door.ports.sign_in.cancel(params.login_id)
    return {"status": "canceled" if ended else "notFound"}


async def logout(door: Door, _: NoParams) -> Result:
    """Forgets the sign-in, wherever it is kept."""
    store = own_store(door)
    await _asked(store.forget)
    door.notify("account/updated", {"authMode": None, "planType": None})
    return {}


async def rate_limits(door: Door, _: NoParams) -> Result:
    """No limits of an account: a provider's are kept by its workers, and reached in silence."""
    return {"rateLimits": {"limitId": None, "primary": None, "secondary": None, "credits": None}}


async def usage(door: Door, _: NoParams) -> Result:
    """No account's usage: `dendro stats` and the budget of a tree tell of tokens."""
    return {"summary": {}, "dailyUsageBuckets": None, "threadUsage": None}


METHODS: Mapping[str, Method] = {
    "account/read": Method(AccountRead, account_read, Scope.READ),
    "account/login/start": Method(LoginStart, login_start, Scope.ADMIN, Whose.KEYS),
    "account/login/cancel": Method(LoginCancel, login_cancel, Scope.ADMIN, Whose.KEYS),
    "account/logout": Method(NoParams, logout, Scope.ADMIN, Whose.KEYS),
    "account/rateLimits/read": Method(NoParams, rate_limits, Scope.READ),
    "account/usage/read": Method(NoParams, usage, Scope.READ),
}

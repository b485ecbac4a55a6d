"""A real OpenID provider on this machine, of Authlib's server side: device flow, and code flow that insists on PKCE.

`oidc-provider-mock` has no device flow; this one has, and can be told to issue ID tokens that must not be believed.
"""

from __future__ import annotations

import secrets
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import AuthorizationCodeGrant, ClientMixin
from authlib.oauth2.rfc6749.models import AuthorizationCodeMixin
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc8628 import DeviceAuthorizationEndpoint, DeviceCodeGrant, DeviceCredentialDict
from authlib.oidc.core import OpenIDCode, OpenIDToken
from authlib.oidc.core.util import create_half_hash
from flask import Flask, Response, jsonify, redirect, request
from joserfc import jwt
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey
from werkzeug.serving import make_server

from tests.support.local_servers import in_thread

CLIENT_ID = "manyhands-test"
SECRET = "of the client"
SUBJECTS = {"Alice": "sub-1", "bob": "sub-2", "carol": "sub-3"}
ORGANISATIONS = {"sub-3": ["NeuroPark", "others"]}


@dataclass
class Account:
    """Somebody with an account there."""

    subject: str
    username: str

    def get_user_id(self) -> str:
        return self.subject


class Client(ClientMixin):
    """The one client: this project's coordinator."""

    def __init__(self, secret: str | None) -> None:
        self.client_id, self.secret = CLIENT_ID, secret

    def get_client_id(self) -> str:
        return self.client_id

    def get_default_redirect_uri(self) -> None:
        return None

    def get_allowed_scope(self, scope: str) -> str:
        return scope

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri.endswith("/login/callback")

    def check_client_secret(self, client_secret: str) -> bool:
        return self.secret is not None and secrets.compare_digest(client_secret, self.secret)

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == ("none" if self.secret is None else "client_secret_basic")

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type != "refresh_token"


@dataclass
class Code(AuthorizationCodeMixin):
    """An authorization code that was not redeemed yet."""

    redirect_uri: str
    scope: str
    nonce: str | None
    account: Account
    code_challenge: str | None
    code_challenge_method: str | None
    code: str

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope

    def get_nonce(self) -> str | None:
        return self.nonce

    def get_auth_time(self) -> None:
        return None

    def get_acr(self) -> None:
        return None

    def get_amr(self) -> None:
        return None


def unchanged(claims: dict[str, Any]) -> dict[str, Any]:
    """The claims as they should be."""
    return claims


@dataclass
class OpenIdProvider:
    """What the provider knows, and how it may be told to misbehave."""

    secret: str | None = None
    device_flow: bool = True
    key: Key = field(default_factory=lambda: rsa_key())
    algorithm: str = "RS256"
    repeats_nonce: bool = True  # also in the device flow
    organisations_in_token: bool = False
    interval: float = 0.1
    expires_in: float = 300
    signing_key: Key | None = None  # another than the published one
    change_claims: Callable[[dict[str, Any]], dict[str, Any]] = unchanged
    change_token: Callable[[str], str] = str
    issued: list[str] = field(default_factory=list)  # ID tokens
    asked: list[str] = field(default_factory=list)  # paths
    down: bool = False
    url: str = ""
    accounts: dict[str, Account] = field(default_factory=dict)
    devices: dict[str, DeviceCredentialDict] = field(default_factory=dict)
    decisions: dict[str, tuple[Account, bool]] = field(default_factory=dict)
    codes: dict[str, Code] = field(default_factory=dict)
    access: dict[str, Account] = field(default_factory=dict)

    def account(self, username: str) -> Account:
        """Somebody's account, the same whenever it is asked for."""
        return self.accounts.setdefault(username, Account(SUBJECTS.get(username, f"sub-{username}"), username))

    def decide(self, user_code: str, username: str, approved: bool = True) -> None:
        """As the person does who has entered the code."""
        self.decisions[user_code] = (self.account(username), approved)

    def settings(self, **more: Any) -> dict[str, Any]:
        """This provider in a run's settings."""
        return {
            "discovery": f"{self.url}/.well-known/openid-configuration",
            "client_id": CLIENT_ID,
            "title": "Test Login",
            "organisation_claim": "orgs[].preferred_username",
        } | more

    def published(self) -> dict[str, Any]:
        """The discovery document."""
        device = {"device_authorization_endpoint": f"{self.url}/device"} if self.device_flow else {}
        return device | {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "jwks_uri": f"{self.url}/jwks",
            "id_token_signing_alg_values_supported": [self.algorithm],
        }

    def user_info(self, account: Account) -> dict[str, Any]:
        """What is told of an account at the userinfo endpoint, as Hugging Face does."""
        names = ORGANISATIONS.get(account.subject, [])
        orgs = [{"sub": f"org-{name}", "name": name, "preferred_username": name} for name in names]
        return {"sub": account.subject, "preferred_username": account.username, "orgs": orgs, "email": "kept@nowhere"}

    def id_token(self, account: Account, nonce: str | None, access_token: str) -> str:
        """A signed ID token, changed as was told."""
        now = int(time.time())
        claims = {"iss": self.url, "aud": CLIENT_ID, "sub": account.subject, "iat": now, "exp": now + 300}
        claims |= {"preferred_username": account.username, "email": "kept@nowhere"}
        claims |= {"nonce": nonce} if nonce is not None else {}
        claims |= {"at_hash": create_half_hash(access_token, self.algorithm).decode()}
        claims |= {"orgs": self.user_info(account)["orgs"]} if self.organisations_in_token else {}
        header = {"alg": self.algorithm, "kid": self.key.kid}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)  # of EdDSA, which providers still call so
            token = jwt.encode(header, self.change_claims(claims), self.signing_key or self.key, [self.algorithm])
        self.issued.append(self.change_token(token))
        return self.issued[-1]


@cache
def rsa_key() -> Key:
    """The usual key, which takes long to make."""
    return RSAKey.generate_key(2048, auto_kid=True)


def elliptic_key() -> Key:
    return ECKey.generate_key("P-256", auto_kid=True)


def edwards_key() -> Key:
    return OKPKey.generate_key("Ed25519", auto_kid=True)


class Server(AuthorizationServer):
    """Authlib's server, which knows the provider it works for."""

    def __init__(self, provider: OpenIdProvider) -> None:
        super().__init__()
        self.provider, self.client = provider, Client(provider.secret)
        self.load_config({})

    def query_client(self, client_id: str) -> Client | None:
        return self.client if client_id == CLIENT_ID else None

    def save_token(self, token: dict[str, Any], asked: Any) -> None:
        self.provider.access[token["access_token"]] = asked.user


class Endpoint(DeviceAuthorizationEndpoint):
    """Gives out codes."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.EXPIRES_IN, self.INTERVAL = server.provider.expires_in, server.provider.interval

    def get_verification_uri(self) -> str:
        return f"{self.server.provider.url}/activate"

    def save_device_credential(self, client_id: str, scope: str, data: dict[str, Any]) -> None:
        credential = DeviceCredentialDict(client_id=client_id, scope=scope, nonce=request.form.get("nonce"), **data)
        credential["expires_at"] = time.time() + self.EXPIRES_IN
        self.server.provider.devices[data["device_code"]] = credential


class Device(DeviceCodeGrant):
    """Gives out tokens once the person has decided."""

    def query_device_credential(self, device_code: str) -> DeviceCredentialDict | None:
        return self.server.provider.devices.get(device_code)

    def query_user_grant(self, user_code: str) -> tuple[Account, bool] | None:
        return self.server.provider.decisions.get(user_code)

    def should_slow_down(self, credential: DeviceCredentialDict) -> bool:
        return False


class DeviceIdToken(OpenIDToken):
    """Adds the ID token to the device flow's answer."""

    def __init__(self, provider: OpenIdProvider) -> None:
        self.provider = provider

    def encode_id_token(self, token: dict[str, Any], asked: Any) -> str:
        nonce = asked.credential.get("nonce") if self.provider.repeats_nonce else None
        return self.provider.id_token(asked.user, nonce, token["access_token"])


class ByCode(AuthorizationCodeGrant):
    """Gives out codes to browsers, and tokens for codes."""

    TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic", "none")

    def save_authorization_code(self, code: str, asked: Any) -> None:
        data = asked.payload.data
        challenge = data.get("code_challenge"), data.get("code_challenge_method")
        found = Code(asked.payload.redirect_uri, asked.scope, data.get("nonce"), asked.user, *challenge, code)
        self.server.provider.codes[code] = found

    def query_authorization_code(self, code: str, client: Client) -> Code | None:
        return self.server.provider.codes.get(code)

    def delete_authorization_code(self, authorization_code: Code) -> None:
        del self.server.provider.codes[authorization_code.code]

    def authenticate_user(self, authorization_code: Code) -> Account:
        return authorization_code.account


class CodeIdToken(OpenIDCode):
    """Adds the ID token to the code flow's answer."""

    def __init__(self, provider: OpenIdProvider) -> None:
        super().__init__(require_nonce=True)
        self.provider = provider

    def exists_nonce(self, nonce: str, asked: Any) -> bool:
        return False

    def encode_id_token(self, token: dict[str, Any], asked: Any) -> str:
        return self.provider.id_token(asked.user, asked.authorization_code.nonce, token["access_token"])


def make_app(provider: OpenIdProvider) -> Flask:
    """The provider as a web application."""
    app, server = Flask("provider"), Server(provider)
    server.register_endpoint(Endpoint(server))
    server.register_grant(Device, [DeviceIdToken(provider)])
    server.register_grant(ByCode, [CodeChallenge(required=True), CodeIdToken(provider)])

    @app.before_request
    def note() -> Response | None:
        provider.asked.append(request.path)
        return Response("out of order", 503) if provider.down else None

    add_facts(app, provider)
    add_logins(app, provider, server)
    return app


def add_facts(app: Flask, provider: OpenIdProvider) -> None:
    """What the provider tells of itself and of accounts."""

    @app.get("/.well-known/openid-configuration")
    def configuration() -> Any:
        return jsonify(provider.published())

    @app.get("/jwks")
    def jwks() -> Any:
        return jsonify({"keys": [provider.key.as_dict(private=False)]})

    @app.get("/userinfo")
    def userinfo() -> Any:
        account = provider.access[request.headers["authorization"].removeprefix("Bearer ")]
        return jsonify(provider.user_info(account))


def add_logins(app: Flask, provider: OpenIdProvider, server: Server) -> None:
    """The flows' endpoints."""

    @app.post("/device")
    def device() -> Any:
        return server.create_endpoint_response("device_authorization")

    @app.post("/activate")
    def activate() -> str:
        provider.decide(request.form["user_code"], request.form["username"], request.form.get("approve") != "no")
        return "decided"

    @app.get("/authorize")
    def authorize() -> Any:
        """Whoever the browser's cookie says is logged in here agrees; nobody refuses."""
        username = request.cookies.get("account")
        if username is None:
            return redirect(f"{request.args['redirect_uri']}?error=access_denied&state={request.args['state']}")
        grant = server.get_consent_grant(end_user=provider.account(username))
        return server.create_authorization_response(request, provider.account(username), grant)

    @app.post("/token")
    def token() -> Any:
        return server.create_token_response()


@contextmanager
def running(provider: OpenIdProvider) -> Iterator[OpenIdProvider]:
    """Serve the provider on a free port for the time of the block."""
    server = make_server("127.0.0.1", 0, make_app(provider), threaded=True)
    provider.url = f"http://127.0.0.1:{server.server_port}"
    with in_thread(server):
        yield provider

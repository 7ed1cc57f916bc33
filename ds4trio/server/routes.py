"""Which path leads where: keys, request heads, and every answer's way to `exchange`."""

from __future__ import annotations

import re
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl
from uuid import uuid4

from ds4trio.errors import (
    AuthenticationError,
    Ds4TrioError,
    MethodNotAllowedError,
    NotFoundError,
    RequestError,
    UnsupportedMediaTypeError,
)
from ds4trio.protocols.openai_responses_list import item_list, whole_number
from ds4trio.protocols.table import PROTOCOLS, render_error
from ds4trio.server import engine_view, status
from ds4trio.server.counting import COUNTERS, Counter, tokenizer_info
from ds4trio.server.exchange import Exchange, respond, with_headers
from ds4trio.server.headers import id_headers, retry_after
from ds4trio.server.origins import PREFLIGHT
from ds4trio.server.record import Outcome, RequestRecord
from ds4trio.server.web_page import PAGE_HEADERS

if TYPE_CHECKING:
    from ds4trio.protocols.wire import WireProtocol
    from ds4trio.server.exchange import Receive, Send, Work
    from ds4trio.server.state import ServerState

    Scope = dict[str, Any]

#: What a client may choose as its request's id, so that it can stand in logs and paths.
PRIORITY = re.compile("[0-9]")
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
CANCEL_PATH = re.compile(r"/v1/requests/([^/]+)/cancel")
RESPONSES_PATH = "/v1/responses"
RESPONSE_PATH = re.compile(RESPONSES_PATH + r"/([^/]+)(?:/(input_items|cancel))?")
#: What needs no key, and what may need one of its own.
OPEN = ("/health", "/ready")
INSIGHT = ("/metrics", "/v1/engine")
JSON = b"application/json"


class Request:
    """The head of one HTTP request, as this server reads it."""

    def __init__(self, scope: Scope) -> None:
        self.method: str = scope["method"]
        # A trailing slash is forgiven.
        self.path: str = scope["path"].rstrip("/") or "/"
        self.query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        # A repeated header counts once: the last one wins.
        self.headers: dict[bytes, bytes] = {name.lower(): value for name, value in scope["headers"]}
        client = scope.get("client")
        server = scope.get("server")
        self.local_address: str | None = server[0] if server else None
        self.client = f"{client[0]}:{client[1]}" if client else "-"
        given = self.headers.get(b"x-request-id", b"").decode("latin-1")
        self.id = given if REQUEST_ID.fullmatch(given) else f"req_{uuid4().hex}"

    def priority(self) -> int:
        """What it asks for: higher goes first. Raises: RequestError."""
        text = self.headers.get(b"x-priority", b"0").decode("latin-1")
        if not PRIORITY.fullmatch(text):
            raise RequestError("x-priority must be from 0 to 9.", param="x-priority")
        return int(text)

    def timeout_s(self, default: float | None) -> float | None:
        """The request's own deadline, never later than the server's. Raises: RequestError."""
        text = self.headers.get(b"x-request-timeout")
        if text is None:
            return default
        try:
            timeout_s = float(text)
        except ValueError:
            timeout_s = -1.0
        if not 0 < timeout_s < float("inf"):
            raise RequestError(
                "x-request-timeout must be a number of seconds above 0.", param="x-request-timeout"
            )
        return timeout_s if default is None else min(timeout_s, default)


class Routes:
    """The server's answers, over one `ServerState`."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        origins = self._state.origins
        send = with_headers(send, origins.headers(request.headers))
        counter = COUNTERS.get(request.path)
        protocol = PROTOCOLS.get(counter.like if counter else request.path)
        try:
            origins.check(request.method, request.headers, request.local_address)
            if origins.is_preflight(request.method, request.headers):
                await respond(send, 200, b"", JSON, PREFLIGHT)
                return
            key = self._authenticate(request)
            if protocol is not None:
                _check_post(request)
                self._state.check_quota(key)
                await self._exchange(protocol, request, receive, send, key, counter=counter).run()
            elif about := RESPONSE_PATH.fullmatch(request.path):
                await self._about_response(about[1], about[2], request, receive, send, key)
            else:
                await self._answer(request, send, key)
        except Ds4TrioError as error:
            if protocol is None:
                code, body = error.status, render_error(error)
            else:
                code, body = protocol.status(error), protocol.render_error(error)
                self._note_refusal(counter or protocol, request, code, error)
            headers = [*_id_header(request), *_error_headers(error)]
            await respond(send, code, body, JSON, headers)

    def _note_refusal(
        self, asked: WireProtocol | Counter, request: Request, code: int, error: Ds4TrioError
    ) -> None:
        """A request that never became an exchange is counted and logged like one."""
        record = RequestRecord(request.id, asked.name, request.client)
        record.outcome = Outcome.REJECTED
        record.status, record.detail = code, error.message
        record.ended_at = perf_counter()
        self._state.request_ended(record)

    def _authenticate(self, request: Request) -> str | None:
        """The key that asks, or None where no key is needed. Raises: AuthenticationError."""
        keys = self._state.keys
        if request.path in INSIGHT:
            keys = self._state.metrics_keys or keys
        if keys is None or request.path in OPEN or request.path in self._state.page:
            return None
        key = keys.find(request.headers)
        if key is None:
            raise AuthenticationError("A valid API key is needed.", code="invalid_api_key")
        return key

    def _exchange(
        self,
        protocol: WireProtocol,
        request: Request,
        receive: Receive,
        send: Send,
        key: str | None,
        work: Work | None = None,
        counter: Counter | None = None,
    ) -> Exchange:
        timeout_s = request.timeout_s(self._state.settings.request_timeout_s)
        record = RequestRecord(request.id, (counter or protocol).name, request.client)
        record.priority = request.priority()
        if counter is not None:
            work = partial(Exchange.compute, function=counter.compute)
        return Exchange(
            self._state, protocol, record, receive, send, key=key, timeout_s=timeout_s, work=work
        )

    async def _about_response(
        self,
        response_id: str,
        part: str | None,
        request: Request,
        receive: Receive,
        send: Send,
        key: str | None,
    ) -> None:
        """What can be asked about an answer of the Responses API. Raises: RequestError."""
        responses, owner = self._state.responses, self._state.owner(key)
        match request.method, part:
            case "GET", None if request.query.get("stream") == "true":
                after = whole_number(request.query, "starting_after", -1)
                following = responses.follow(response_id, owner, after)
                protocol = PROTOCOLS[RESPONSES_PATH]
                await self._exchange(
                    protocol,
                    request,
                    receive,
                    send,
                    key,
                    lambda exchange: exchange.speak(following),
                ).run()
                return
            case "GET", None:
                body = await responses.body(response_id, owner)
            case "GET", "input_items":
                body = item_list(responses.items(response_id, owner), request.query)
            case "POST", "cancel":
                body = await responses.cancel(response_id, owner)
            case "DELETE", None:
                await responses.delete(response_id, owner)
                body = b'{"id":"%b","object":"response","deleted":true}' % response_id.encode()
            case _:
                allowed = {None: ("GET", "DELETE"), "input_items": ("GET",), "cancel": ("POST",)}
                raise _not_allowed(request, *allowed[part])
        await respond(send, 200, body, JSON, _id_header(request))

    async def _answer(self, request: Request, send: Send, key: str | None) -> None:
        if cancel := CANCEL_PATH.fullmatch(request.path):
            _allow(request, "POST")
            await self._state.cancel(cancel[1], key)
            body = b'{"id":"%s","cancelled":true}' % cancel[1].encode()
            await respond(send, 200, body, JSON, _id_header(request))
            return
        _allow(request, "GET", "HEAD")
        if file := self._state.page.get(request.path):
            await respond(send, 200, file.body, file.kind, [*_id_header(request), *PAGE_HEADERS])
            return
        code, body, kind = self._page(request.path)
        await respond(send, code, body, kind, _id_header(request))

    def _page(self, path: str) -> tuple[int, bytes, bytes]:
        """Status, body and content type of what can be read. Raises: NotFoundError."""
        state = self._state
        service = state.service
        if path == "/health":
            return 200, status.health(), JSON
        if path == "/ready":
            ready = service is not None and not state.draining
            return 200 if ready else 503, status.ready(ready), JSON
        if path == "/metrics":
            body, kind = state.metrics.render()
            return 200, body, kind.encode()
        if path == "/v1/engine":
            return 200, engine_view.render(state, perf_counter()), JSON
        if path == "/tokenizer_info":
            return 200, tokenizer_info(state.ready_service()), JSON
        if path == "/v1/models" or path.startswith("/v1/models/"):
            service = state.ready_service()
            if path == "/v1/models":
                return 200, status.models(service.name, service.engine.context_tokens), JSON
            name = path.removeprefix("/v1/models/")
            if name == service.name:
                return 200, status.model(service.name, service.engine.context_tokens), JSON
            raise NotFoundError(f"The model {name!r} does not exist.", code="model_not_found")
        raise NotFoundError(f"There is no {path} here.")


def _id_header(request: Request) -> list[tuple[bytes, bytes]]:
    return id_headers(request.id)


def _error_headers(error: Ds4TrioError) -> list[tuple[bytes, bytes]]:
    """What HTTP wants said beside a status (RFC 9110, 10.2.1, 10.2.3 and 11.6.1)."""
    headers = retry_after(error)
    if isinstance(error, MethodNotAllowedError):
        headers.append((b"allow", ", ".join(error.allowed).encode()))
    if isinstance(error, AuthenticationError):
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def _allow(request: Request, *methods: str) -> None:
    if request.method not in methods:
        raise _not_allowed(request, *methods)


def _not_allowed(request: Request, *allowed: str) -> MethodNotAllowedError:
    message = f"{request.path} takes {' and '.join(allowed)} only."
    return MethodNotAllowedError(message, allowed=allowed)


def _check_post(request: Request) -> None:
    """JSON only: a web page cannot send it to a stranger's server without asking (CORS)."""
    _allow(request, "POST")
    kind = request.headers.get(b"content-type", JSON).split(b";")[0].strip().lower()
    if kind != JSON:
        raise UnsupportedMediaTypeError("The content-type must be application/json.")
    if request.headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise UnsupportedMediaTypeError("A compressed request body is not understood.")

"""The lab's web application: its pages and its JSON API. It computes nothing itself: worker processes do."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import RedirectResponse, Response, StreamingResponse
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from fedveil import __version__
from fedveil.core.errors import ConfigError, FedveilError, RunError
from fedveil.core.system import to_json
from fedveil.lab import guard, measured, pool, requests, runs, script
from fedveil.lab.pictures import MAX_BYTES
from fedveil.lab.pool import Job, QueueFull
from fedveil.lab.requests import LeakRequest, TradeRequest
from fedveil.lab.server import Lab, cache_key

STATIC = Path(__file__).parent / "static"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PICTURE_TYPES = ("application/octet-stream", "image/png", "image/jpeg", "image/webp")
MAX_JSON_BYTES = 64_000
GALLERY_PAGE = 24  # pictures on one page of the gallery
MAX_COMPARED = 12  # runs in one report
MAX_STREAMS = 100  # pages that follow jobs at a time
ERROR = {"application/json": {"schema": {"type": "object", "properties": {"error": {"type": "string"}}}}}
REFUSALS = {
    401: "no token",
    403: "from another site",
    404: "not there",
    413: "too large",
    421: "wrong host",
    422: "wrong request",
    429: "too many at a time",
}
PING = 5.0  # seconds without events after which a stream sends the state of its job


def create(lab: Lab, host: str = "127.0.0.1", token: str | None = None) -> guard.Guard:
    """The application, protected by the guard."""
    # Without redirects to the same path with or without a slash: no answer of the lab leads to another host.
    refused: dict[int | str, Any] = {key: {"description": text, "content": ERROR} for key, text in REFUSALS.items()}
    app = FastAPI(
        docs_url=None, redoc_url=None, openapi_url="/api/openapi.json", redirect_slashes=False, responses=refused
    )
    app.openapi = lambda: _schema(app)  # type: ignore[method-assign]
    for kind in (FedveilError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _error_response)
    _add_choices(app, lab)
    _add_account(app, lab)
    _add_leak(app, lab)
    _add_tradeoff(app, lab)
    _add_jobs(app, lab)
    _add_runs(app, lab)
    _add_pages(app)  # last: its pattern matches any name
    return guard.Guard(app, host, token, MAX_BYTES + 1000)


def json_response(content: object, status: int = 200) -> Response:
    """Strict JSON: NaN and infinity become null, and halves of characters question marks."""
    return Response(to_json(content).encode("utf-8", "replace"), status_code=status, media_type="application/json")


async def _error_response(request: Request, error: Exception) -> Response:
    """Every expected error is one line."""
    if isinstance(error, HTTPException):
        return json_response({"error": str(error.detail)}, error.status_code)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        return json_response({"error": f"{first['loc'][-1]}: {first['msg']}"}, 422)
    status = 422 if isinstance(error, FedveilError) and error.exit_code == 2 else 500
    status = 429 if isinstance(error, QueueFull) else status
    return json_response({"error": str(error)}, status)


def _schema(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI schema of the lab, with the requests that the pages make."""
    if app.openapi_schema is None:
        made = get_openapi(title="Fedveil lab", version=__version__, routes=app.routes)
        kinds: Any = [(kind, "validation") for kind in (LeakRequest, TradeRequest)]
        _, found = models_json_schema(kinds, ref_template="#/components/schemas/{model}")
        made.setdefault("components", {}).setdefault("schemas", {}).update(found["$defs"])
        app.openapi_schema = made
    return app.openapi_schema


def _takes(**parts: str) -> dict[str, Any]:
    """The schema of a JSON body that holds these requests, each under its key."""
    properties = {key: {"$ref": f"#/components/schemas/{kind}"} for key, kind in parts.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    schema |= {"required": list(parts)} if len(parts) == 1 else {}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


# --- pages


def _add_pages(app: FastAPI) -> None:
    """Serves the static files, which are read once. Only these files exist, whatever the path says."""
    files = {path.name: (path.read_bytes(), TYPES[path.suffix]) for path in STATIC.iterdir() if path.suffix in TYPES}

    def file_response(name: str) -> Response:
        if name not in files:
            return json_response({"error": f"there is no page {name!r}: see /leak, /tradeoff, /runs"}, 404)
        content, kind = files[name]
        return Response(content, media_type=kind)

    @app.api_route("/", methods=["GET", "HEAD"])
    async def home() -> Response:
        return RedirectResponse("/leak")

    @app.api_route("/static/{name}", methods=["GET", "HEAD"])
    async def static(name: str) -> Response:
        return file_response(name)

    @app.api_route("/{page}", methods=["GET", "HEAD"])
    async def page(page: str) -> Response:
        return file_response("icon.svg" if page == "favicon.ico" else f"{page}.html")


# --- forms, pictures and the privacy account


def _add_choices(app: FastAPI, lab: Lab) -> None:
    def offered() -> dict[str, Any]:
        known = lab.cached("choices") or {**requests.choices(), "start": lab.start(), "version": __version__}
        lab.cache("choices", known)
        # A dataset may be downloaded while the lab runs.
        datasets = [{**info, "here": requests.is_installed(info["name"])} for info in known["datasets"]]
        return {**known, "datasets": datasets}

    @app.get("/api/choices")
    async def choices() -> Response:
        return json_response(await asyncio.to_thread(offered))

    @app.get("/api/gallery")
    async def gallery(dataset: str = "digits", first: int = 0) -> Response:
        if dataset not in requests.PICTURE_SETS:
            raise ConfigError("dataset", dataset, "takes one of: " + ", ".join(requests.PICTURE_SETS))
        if not 0 <= first <= 10_000_000:
            raise ConfigError("first", first, "takes a whole number, 0 or more")
        payload = {"dataset": dataset, "first": first, "count": GALLERY_PAGE}
        return json_response(await _compute(lab, "gallery", payload))

    picture = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in PICTURE_TYPES}

    @app.post("/api/uploads", openapi_extra={"requestBody": {"required": True, "content": picture}})
    async def upload(request: Request) -> Response:
        kind = request.headers.get("content-type", "")
        if kind.split(";")[0].strip() not in PICTURE_TYPES:
            takes = "takes image/png, image/jpeg, image/webp or application/octet-stream"
            raise ConfigError("content-type", kind, takes)
        return json_response(await _compute(lab, "upload", {"content": await request.body()}, cached=False))

    @app.get("/api/uploads/{name}")
    async def sized(name: str, dataset: str = "digits") -> Response:
        """An upload in the size and the colours of a dataset, as it is attacked."""
        picture = requests.read(requests.Picture, {"dataset": dataset, "upload": name})
        payload = {"dataset": picture.dataset, "upload": picture.upload}
        return json_response(await _compute(lab, "sized", payload, cached=False))


def _add_account(app: FastAPI, lab: Lab) -> None:
    @app.post("/api/account", openapi_extra=_takes(trade="TradeRequest", leak="LeakRequest"))
    async def account(request: Request) -> Response:
        """ε for every adversary, of a training (`trade`) or of the training that contains the attacked client (`leak`)."""
        body = await _json(request)
        if "leak" in body:
            document = requests.read(LeakRequest, body["leak"]).federation_document()
        else:
            document = requests.read(TradeRequest, body.get("trade")).document()
        group = f"account-{str(body.get('page', ''))[:32]}"
        return json_response(await _compute(lab, "account", {"document": requests.check(document)}, group=group))


# --- the Leak page


def _add_leak(app: FastAPI, lab: Lab) -> None:
    @app.post("/api/leak/script", openapi_extra=_takes(leak="LeakRequest"))
    async def scripts(request: Request) -> Response:
        leak: LeakRequest = requests.read(LeakRequest, (await _json(request)).get("leak"))
        (undefended, defended), picked = await _attack_documents(lab, leak)
        training = requests.check(leak.federation_document())
        return json_response(
            {
                "open": script.both("attack", undefended, "open.toml"),
                "defended": script.both("attack", defended, "defended.toml"),
                "account": script.both("ledger", training, "training.toml"),
                "labels": picked["labels"],
            }
        )

    @app.post("/api/leak", openapi_extra=_takes(leak="LeakRequest"))
    async def start(request: Request) -> Response:
        leak: LeakRequest = requests.read(LeakRequest, (await _json(request)).get("leak"))
        documents, _ = await _attack_documents(lab, leak)
        if leak.defense.get("name") == "none":
            documents = documents[:1]
        title = f"{leak.attack} on {leak.picture.dataset}, {leak.defense.get('name')}, tap {leak.tap}"
        return json_response(_describe(lab, lab.work.submit("leak", {"documents": documents}, title)))


async def _attack_documents(lab: Lab, leak: LeakRequest) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The configs of the attack without and with the defence; and the file of pictures that they attack."""
    picked = await _compute(lab, "pick", {"ask": leak.model_dump()})
    if not Path(picked["file"]).is_file():  # the folder was cleared after the answer was cached
        picked = await _compute(lab, "pick", {"ask": leak.model_dump()}, cached=False)
    documents = [leak.attack_document(picked["file"], defended=defended) for defended in (False, True)]
    return [requests.check(document) for document in documents], picked


# --- the Trade-off page


def _add_tradeoff(app: FastAPI, lab: Lab) -> None:
    @app.post("/api/trade", openapi_extra=_takes(trade="TradeRequest"))
    async def trade(request: Request) -> Response:
        """What is known without computing: scripts to copy, and runs on the same dataset."""
        asked: TradeRequest = requests.read(TradeRequest, (await _json(request)).get("trade"))
        document = requests.check(asked.document())
        known = await asyncio.to_thread(_known_runs, lab, document)
        texts = {name: script.both(name, document, "training.toml") for name in ("train", "ledger")}
        return json_response({**known, "scripts": texts})

    @app.post("/api/train", openapi_extra=_takes(trade="TradeRequest"))
    async def train(request: Request) -> Response:
        asked: TradeRequest = requests.read(TradeRequest, (await _json(request)).get("trade"))
        document = requests.check(asked.document())
        if not await asyncio.to_thread(requests.is_installed, asked.dataset):
            takes = f"its files are not installed: fedveil data get {asked.dataset}"
            raise ConfigError("data.name", asked.dataset, takes)
        name = runs.new_name(lab.runs, document)
        payload = {"document": document, "run": str(lab.runs / name)}
        title = f"training on {asked.dataset}, {asked.defense.get('name')}, {asked.rounds} rounds"
        return json_response({**_describe(lab, lab.work.submit("train", payload, title)), "run": name})


def _known_runs(lab: Lab, document: dict[str, Any]) -> dict[str, Any]:
    """Measured accuracies on the document's dataset, local runs first. `same`: those whose settings are equal."""
    wanted = runs.fingerprint(document)
    points = [*runs.finished(lab.runs), *measured.points()]
    on_dataset = [point for point in points if point["dataset"] == document["data"]["name"]]
    known = [{**point, "same": wanted is not None and point["fingerprint"] == wanted} for point in on_dataset]
    return {"runs": known, "same": [point for point in known if point["same"]]}


# --- jobs


def _add_jobs(app: FastAPI, lab: Lab) -> None:
    @app.get("/api/jobs")
    async def jobs() -> Response:
        newest_first = sorted(lab.work.jobs.values(), key=lambda job: -job.created)
        return json_response(
            {
                "jobs": [{**_describe(lab, job), "result": None} for job in newest_first],
                "workers": [*lab.work.workers(), *lab.quick.workers()],
                "news": [*lab.work.news, *lab.quick.news],
                "limits": _limits(lab),
            }
        )

    @app.get("/api/jobs/{name}")
    async def one(name: str, first: int = 0) -> Response:
        job = lab.job(name)
        events, following = job.since(max(0, first))
        return json_response({**_describe(lab, job), "events": events, "next": following})

    @app.get("/api/jobs/{name}/events")
    async def follow(name: str, request: Request) -> Response:
        if lab.streams >= MAX_STREAMS:
            raise QueueFull(f"{MAX_STREAMS} pages follow jobs already: close one")
        last = request.headers.get("last-event-id", "0")
        first = int(last) if last.isdecimal() and len(last) < 16 else 0
        return StreamingResponse(_counted(lab, _stream(lab, lab.job(name), first)), media_type="text/event-stream")

    @app.post("/api/jobs/{name}/cancel")
    async def cancel(name: str) -> Response:
        job = lab.job(name)
        lab.work.cancel(job)
        return json_response(_describe(lab, job))


def _limits(lab: Lab) -> dict[str, float]:
    limits = lab.work.limits
    return {"seconds": limits.seconds, "memory": limits.memory, "waiting": limits.waiting, "upload": MAX_BYTES}


def _describe(lab: Lab, job: Job) -> dict[str, Any]:
    return {**job.as_dict(), "before": lab.work.position(job)}


async def _counted(lab: Lab, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    lab.streams += 1
    try:
        async for part in stream:
            yield part
    finally:
        lab.streams -= 1


async def _stream(lab: Lab, job: Job, following: int) -> AsyncIterator[bytes]:
    """Server-sent events: those of the job, its end, and in between its state every few seconds."""
    last_sent = time.monotonic()
    while not lab.stopping():
        ended = job.state not in pool.OPEN  # read first, so that all events before the end are sent before it
        events, after = job.since(following)
        for number, event in enumerate(events, start=after - len(events) + 1):
            yield f"id: {number}\ndata: {to_json(event)}\n\n".encode()
        following = after
        if ended:
            yield f"event: end\ndata: {to_json(_describe(lab, job))}\n\n".encode()
            return
        if events:
            last_sent = time.monotonic()
        elif time.monotonic() - last_sent > PING:
            last_sent = time.monotonic()
            yield f"event: wait\ndata: {to_json(_describe(lab, job))}\n\n".encode()
        await asyncio.sleep(0.08)


# --- the Runs page


def _add_runs(app: FastAPI, lab: Lab) -> None:
    @app.get("/api/runs")
    def all_runs() -> Response:
        found = [runs.summary(path) for path in runs.listed(lab.runs).values()]
        return json_response({"folder": str(lab.runs), "runs": found})

    @app.get("/api/runs/{name}")
    def one(name: str, first: int = 0) -> Response:
        path = _run_path(lab, name)
        config = runs.read_config(path)
        texts = None
        if runs.fingerprint(config) is not None and len(config.get("defense", [])) == 1:
            texts = script.both("train", {**config, "defense": config["defense"][0]}, str(path / "config.toml"))
        return json_response({**runs.detail(path, max(0, first)), "path": str(path), "scripts": texts})

    @app.get("/report")
    async def report(run: Annotated[list[str], Query()] = []) -> Response:  # noqa: B006 (FastAPI reads it once)
        names = run
        if not 1 <= len(names) <= MAX_COMPARED:
            raise ConfigError("run", names, f"takes one to {MAX_COMPARED} names of runs")
        paths = await asyncio.to_thread(lambda: [str(_whole(_run_path(lab, name))) for name in names])
        page = await _compute(lab, "report", {"runs": paths}, cached=False)
        headers = {"content-security-policy": guard.REPORT_POLICY}
        return Response(page, media_type="text/html; charset=utf-8", headers=headers)


def _whole(path: Path) -> Path:
    """The folder of a run, refused if it contains links: the code that reads it would follow them."""
    link = runs.link_in(path)
    if link is not None:
        raise ConfigError(
            "run", path.name, f"{link} in it is a link, which the lab does not follow: put the file there"
        )
    return path


def _run_path(lab: Lab, name: str) -> Path:
    found = runs.listed(lab.runs)
    if name not in found:
        raise ConfigError("run", name, f"there is no such run in {lab.runs}")
    return found[name]


# --- reading requests and calling workers


async def _json(request: Request) -> dict[str, Any]:
    """The body as a JSON object. Its content type must be JSON, which a form on another site cannot send."""
    kind = request.headers.get("content-type", "").split(";")[0].strip()
    if kind != "application/json":
        raise ConfigError("content-type", kind, "takes application/json")
    raw = await request.body()
    if len(raw) > MAX_JSON_BYTES:
        raise ConfigError("request", f"{len(raw):,} bytes", f"takes at most {MAX_JSON_BYTES:,}")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise ConfigError("request", raw[:40].decode("latin-1"), "is not JSON") from None
    if not isinstance(body, dict):
        raise ConfigError("request", body, "takes a JSON object")
    return body


async def _compute(
    lab: Lab, kind: str, payload: dict[str, Any], *, cached: bool = True, group: str | None = None
) -> Any:
    """The result of a task on the quick worker, or its cached result."""
    key = cache_key(kind, payload) if cached else ""
    known = lab.cached(key) if cached else None
    if known is not None:
        return known
    job = lab.quick.submit(kind, payload, kind, group)
    await asyncio.wrap_future(job.finished)
    if job.state == pool.DONE:
        if cached:
            lab.cache(key, job.result)
        return job.result
    if job.wrong_usage or job.state == pool.CANCELLED:
        raise _InvalidRequest(job.message)
    raise RunError(job.message)


class _InvalidRequest(FedveilError):
    """A `ConfigError` of a worker; its message is already complete."""

    exit_code = 2

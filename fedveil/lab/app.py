"""The lab's web application: pages, and the questions they ask. Nothing here computes: workers do."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse

from fedveil import __version__
from fedveil.core.errors import ConfigError, FedveilError, RunError
from fedveil.core.system import to_json
from fedveil.lab import forms, guard, jobs, measured, requests, runs, script
from fedveil.lab.jobs import Job
from fedveil.lab.pictures import MOST_BYTES
from fedveil.lab.pool import QueueFull
from fedveil.lab.state import Lab, key_of

STATIC = Path(__file__).parent / "static"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
JSON_BYTES = 64_000
SHOWN = 24  # pictures in one page of the gallery
MOST_COMPARED = 12


def answer(content: object, status: int = 200) -> Response:
    """Strict JSON."""
    return Response(to_json(content), status_code=status, media_type="application/json")


def create(lab: Lab, host: str = "127.0.0.1", token: str | None = None) -> guard.Guard:
    """The application behind its gate."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(FedveilError, _refusal)
    _choices(app, lab)
    _leak(app, lab)
    _trade(app, lab)
    _jobs(app, lab)
    _runs(app, lab)
    _pages(app)  # last: its pattern takes any name
    return guard.Guard(app, host, token, MOST_BYTES + 1000)


async def _refusal(request: Request, error: Exception) -> Response:
    """Every expected error is one line."""
    code = 422 if isinstance(error, FedveilError) and error.exit_code == 2 else 500
    code = 429 if isinstance(error, QueueFull) else code
    return answer({"error": str(error)}, status=code)


def _pages(app: FastAPI) -> None:
    """Files of the page, read once and answered from memory: what is not among them does not exist."""
    files = {path.name: (path.read_bytes(), TYPES[path.suffix]) for path in STATIC.iterdir() if path.suffix in TYPES}

    def shown(name: str) -> Response:
        if name not in files:
            return answer({"error": f"there is no page {name!r}: see /leak, /tradeoff, /runs"}, status=404)
        content, kind = files[name]
        return Response(content, media_type=kind)

    async def first() -> Response:
        return RedirectResponse("/leak")

    app.add_api_route("/", first, methods=["GET", "HEAD"])

    async def static(name: str) -> Response:
        return shown(name)

    app.add_api_route("/static/{name}", static, methods=["GET", "HEAD"])

    async def page(page: str) -> Response:
        return shown("icon.svg" if page == "favicon.ico" else f"{page}.html")

    app.add_api_route("/{page}", page, methods=["GET", "HEAD"])


def _choices(app: FastAPI, lab: Lab) -> None:
    async def choices() -> Response:
        return answer(await asyncio.to_thread(offered))

    def offered() -> dict[str, Any]:
        known = lab.known("choices") or {**forms.choices(), "start": lab.start(), "version": __version__}
        lab.remember("choices", known)
        here = [
            {**info, "here": forms.here(info["name"])} for info in known["datasets"]
        ]  # one may be fetched meanwhile
        return {**known, "datasets": here}

    app.add_api_route("/api/choices", choices, methods=["GET"])

    async def gallery(dataset: str = "digits", first: int = 0) -> Response:
        if dataset not in requests.PICTURE_SETS:
            raise ConfigError("dataset", dataset, "takes one of: " + ", ".join(requests.PICTURE_SETS))
        if not 0 <= first <= 10_000_000:
            raise ConfigError("first", first, "takes a whole number, 0 or more")
        asked = {"dataset": dataset, "first": first, "count": SHOWN}
        return answer(await _answer(lab, "gallery", asked))

    app.add_api_route("/api/gallery", gallery, methods=["GET"])

    async def upload(request: Request) -> Response:
        kind = request.headers.get("content-type", "")
        if kind.split(";")[0].strip() not in ("application/octet-stream", "image/png", "image/jpeg", "image/webp"):
            raise ConfigError(
                "content-type", kind, "takes image/png, image/jpeg, image/webp or application/octet-stream"
            )
        return answer(await _answer(lab, "upload", {"content": await request.body()}, keep=False))

    app.add_api_route("/api/uploads", upload, methods=["POST"])

    async def account(request: Request) -> Response:
        """ε per seat: of a training (`trade`), or of the training that a leak is one round of (`leak`)."""
        body = await _json(request)
        document = requests.check(_document(body))
        group = f"account-{str(body.get('page', ''))[:32]}"
        return answer(await _answer(lab, "account", {"document": document}, group=group))

    app.add_api_route("/api/account", account, methods=["POST"])


def _document(body: dict[str, Any]) -> dict[str, Any]:
    if "leak" in body:
        return requests.read(requests.LeakAsk, body["leak"]).federation_document()
    return requests.read(requests.TradeAsk, body.get("trade")).document()


def _leak(app: FastAPI, lab: Lab) -> None:
    async def scripted(request: Request) -> Response:
        body = await _json(request)
        return answer(await _scripts(lab, requests.read(requests.LeakAsk, body.get("leak"))))

    app.add_api_route("/api/leak/script", scripted, methods=["POST"])

    async def start(request: Request) -> Response:
        ask: requests.LeakAsk = requests.read(requests.LeakAsk, (await _json(request)).get("leak"))
        documents, _ = await _leak_documents(lab, ask)
        if ask.defense.get("name") == "none":
            documents = documents[:1]
        title = f"{ask.attack} on {ask.picture.dataset}, {ask.defense.get('name')}, tap {ask.tap}"
        return answer(_described(lab, lab.work.submit("leak", {"documents": documents}, title)))

    app.add_api_route("/api/leak", start, methods=["POST"])


async def _leak_documents(lab: Lab, ask: requests.LeakAsk) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Configs of the attack without and with the defence, on a file of the pictures that exists."""
    picked = await _answer(lab, "pick", {"ask": ask.model_dump()})
    if not Path(picked["file"]).is_file():  # someone cleared the folder
        picked = await _answer(lab, "pick", {"ask": ask.model_dump()}, keep=False)
    made = [requests.check(ask.attack_document(picked["file"], defended=on)) for on in (False, True)]
    return made, picked


async def _scripts(lab: Lab, ask: requests.LeakAsk) -> dict[str, Any]:
    (plain, defended), picked = await _leak_documents(lab, ask)
    account = requests.check(ask.federation_document())
    return {
        "open": script.both("attack", plain, "open.toml"),
        "defended": script.both("attack", defended, "defended.toml"),
        "account": script.both("ledger", account, "training.toml"),
        "labels": picked["labels"],
    }


def _trade(app: FastAPI, lab: Lab) -> None:
    async def trade(request: Request) -> Response:
        """What is known without computing: the texts to copy, and runs of the same dataset."""
        ask: requests.TradeAsk = requests.read(requests.TradeAsk, (await _json(request)).get("trade"))
        document = requests.check(ask.document())
        known = await asyncio.to_thread(_known_runs, lab, document)
        texts = {
            "train": script.both("train", document, "training.toml"),
            "ledger": script.both("ledger", document, "training.toml"),
        }
        return answer({**known, "scripts": texts})

    app.add_api_route("/api/trade", trade, methods=["POST"])

    async def train(request: Request) -> Response:
        ask: requests.TradeAsk = requests.read(requests.TradeAsk, (await _json(request)).get("trade"))
        document = requests.check(ask.document())
        if not await asyncio.to_thread(forms.here, ask.dataset):
            raise ConfigError("data.name", ask.dataset, f"its files are not here: fedveil data get {ask.dataset}")
        name = runs.new_name(lab.runs, document)
        payload = {"document": document, "run": str(lab.runs / name)}
        title = f"training on {ask.dataset}, {ask.defense.get('name')}, {ask.rounds} rounds"
        return answer({**_described(lab, lab.work.submit("train", payload, title)), "run": name})

    app.add_api_route("/api/train", train, methods=["POST"])


def _known_runs(lab: Lab, document: dict[str, Any]) -> dict[str, Any]:
    """Measured accuracies for the document's dataset, and which of them have its very settings: own runs first."""
    asked = runs.fingerprint(document)
    points = [*runs.finished(lab.runs), *measured.points()]
    here = [point for point in points if point["dataset"] == document["data"]["name"]]
    told = [{**point, "same": asked is not None and point["fingerprint"] == asked} for point in here]
    return {"runs": told, "same": [point for point in told if point["same"]]}


def _jobs(app: FastAPI, lab: Lab) -> None:
    async def listed() -> Response:
        known = sorted(lab.work.jobs.values(), key=lambda job: -job.created)
        told = [{**_described(lab, job), "result": None} for job in known]
        workers = [*lab.work.workers(), *lab.quick.workers()]
        news = [*lab.work.news, *lab.quick.news]
        return answer({"jobs": told, "workers": workers, "news": news, "limits": _limits(lab)})

    app.add_api_route("/api/jobs", listed, methods=["GET"])

    async def one(name: str, first: int = 0) -> Response:
        job = lab.job(name)
        events, place = job.since(max(0, first))
        return answer({**_described(lab, job), "events": events, "next": place})

    app.add_api_route("/api/jobs/{name}", one, methods=["GET"])

    async def follow(name: str, request: Request) -> Response:
        job = lab.job(name)
        last = request.headers.get("last-event-id", "0")
        first = int(last) if last.isdecimal() else 0
        return StreamingResponse(_stream(lab, job, first), media_type="text/event-stream")

    app.add_api_route("/api/jobs/{name}/events", follow, methods=["GET"])

    async def cancel(name: str) -> Response:
        job = lab.job(name)
        lab.work.cancel(job)
        return answer(_described(lab, job))

    app.add_api_route("/api/jobs/{name}/cancel", cancel, methods=["POST"])


def _limits(lab: Lab) -> dict[str, float]:
    limits = lab.work.limits
    return {"seconds": limits.seconds, "memory": limits.memory, "waiting": limits.waiting, "upload": MOST_BYTES}


def _described(lab: Lab, job: Job) -> dict[str, Any]:
    return {**job.as_dict(), "before": lab.work.place(job)}


async def _stream(lab: Lab, job: Job, place: int) -> AsyncIterator[bytes]:
    """Events as they come, then the job's end. A line now and then keeps the connection open."""
    quiet = time.monotonic()
    while not lab.stopping():
        ended = job.state not in jobs.OPEN  # looked at first: what was told before its end is sent before it
        events, after = job.since(place)
        for number, event in enumerate(events, start=after - len(events) + 1):
            yield f"id: {number}\ndata: {to_json(event)}\n\n".encode()
        place = after
        if ended:
            yield f"event: end\ndata: {to_json(_described(lab, job))}\n\n".encode()
            return
        if events:
            quiet = time.monotonic()
        elif time.monotonic() - quiet > 5:
            quiet = time.monotonic()
            yield f"event: wait\ndata: {to_json(_described(lab, job))}\n\n".encode()
        await asyncio.sleep(0.08)


def _runs(app: FastAPI, lab: Lab) -> None:
    def listed() -> Response:
        found = [runs.summary(path) for path in runs.listed(lab.runs).values()]
        return answer({"folder": str(lab.runs), "runs": found})

    app.add_api_route("/api/runs", listed, methods=["GET"])

    def one(name: str, first: int = 0) -> Response:
        path = _run(lab, name)
        config = runs.read_config(path)
        sections = {key: value for key, value in config.items() if key not in ("defense",)}
        defense = config.get("defense", [])
        texts = None
        if len(defense) == 1:
            texts = script.both("train", {**sections, "defense": defense[0]}, str(path / "config.toml"))
        return answer({**runs.detail(path, max(0, first)), "path": str(path), "scripts": texts})

    app.add_api_route("/api/runs/{name}", one, methods=["GET"])

    async def report(request: Request) -> Response:
        names = request.query_params.getlist("run")
        if not 1 <= len(names) <= MOST_COMPARED:
            raise ConfigError("run", names, f"takes one to {MOST_COMPARED} names of runs")
        paths = await asyncio.to_thread(lambda: [str(_run(lab, name)) for name in names])
        page = await _answer(lab, "report", {"runs": paths}, keep=False)
        headers = {"content-security-policy": guard.REPORT_POLICY}
        return Response(page, media_type="text/html; charset=utf-8", headers=headers)

    app.add_api_route("/report", report, methods=["GET"])


def _run(lab: Lab, name: str) -> Path:
    found = runs.listed(lab.runs)
    if name not in found:
        raise ConfigError("run", name, f"there is no such run in {lab.runs}")
    return found[name]


# --- asking workers ------------------------------------------------------------------------------------------------


async def _json(request: Request) -> dict[str, Any]:
    """The body as a JSON object. Its type must be JSON, which no other site's form can send."""
    kind = request.headers.get("content-type", "").split(";")[0].strip()
    if kind != "application/json":
        raise ConfigError("content-type", kind, "takes application/json")
    raw = await request.body()
    if len(raw) > JSON_BYTES:
        raise ConfigError("request", f"{len(raw):,} bytes", f"takes at most {JSON_BYTES:,}")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise ConfigError("request", raw[:40].decode("latin-1"), "is not JSON") from None
    if not isinstance(body, dict):
        raise ConfigError("request", body, "takes a JSON object")
    return body


async def _answer(lab: Lab, kind: str, payload: dict[str, Any], *, keep: bool = True, group: str | None = None) -> Any:
    """What the quick worker says, or said when it was asked the same before."""
    key = key_of(kind, payload) if keep else ""
    known = lab.known(key) if keep else None
    if known is not None:
        return known
    job = lab.quick.submit(kind, payload, kind, group)
    await asyncio.wrap_future(job.finished)
    if job.state == jobs.DONE:
        if keep:
            lab.remember(key, job.result)
        return job.result
    if job.wrong_usage or job.state == jobs.CANCELLED:
        raise _Refused(job.message)
    raise RunError(job.message)


class _Refused(FedveilError):
    """A worker's `ConfigError`, whose text is whole already."""

    exit_code = 2

"""The web interface: a page of static files and a handful of questions about one model.

    GET  /                      the page
    GET  /api/model             what the model is
    POST /api/trace             a prompt → its trace (binary, see trace.py)
    POST /api/intervene         an intervention → likeliest tokens before and after, KL in bits
    POST /api/paths             what one prediction owes to every edge between streams
    POST /api/attention         the weights of one call of attention over tokens (binary)
    POST /api/generate          continue a prompt, with an intervention or without
    GET  /api/features          features by label or raised token; /STREAM/FEATURE is the card of one, and PUT
                                keeps its label or pin in the run
    POST /api/sweep             every stream × every layer, as a job; GET and DELETE /api/jobs/{id}
    GET  /api/results/{name}    a saved analysis of the run
    GET  /api/induction         the induction score of every head
    GET  /api/switches/LAYER/HEAD/TARGET/SOURCE   which features open an edge

`/openapi.json` describes them; every error is JSON with one line. The page's files are read once, at the
start, by the server's own list: no name a client sends is ever opened.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from srmlab import __version__
from srmlab.analysis.registry import streams_of
from srmlab.errors import UserError
from srmlab.explorer import questions, schema
from srmlab.explorer.background import Job, Jobs
from srmlab.explorer.feature_cards import Note
from srmlab.explorer.frontend import TYPES, static_files
from srmlab.explorer.guard import LOOPBACK, Guard
from srmlab.explorer.session import Session, TooLong
from srmlab.explorer.worker import Busy, Gone, Worker

T = TypeVar("T")
B = TypeVar("B", bound=schema.Prompt)
BYTES = "application/octet-stream"
BINARY: dict[int | str, dict[str, Any]] = {200: {"content": {BYTES: {}}}}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schema.Error, "description": about}
    for status, about in {
        400: "a request that is not JSON",
        403: "from another site",
        404: "no such thing",
        405: "not that verb",
        413: "too large",
        415: "not sent as JSON",
        421: "not for this host",
        422: "cannot be done",
        429: "too many waiting",
    }.items()
}


def create_app(session: Session, *, hosts: tuple[str, ...] = LOOPBACK, queue: int = 64) -> FastAPI:
    """The application around one session. `hosts` are the names it answers for."""
    worker = Worker(queue)
    jobs = Jobs(worker)

    def close() -> None:
        jobs.close()
        worker.close()

    async def same_model(mark: Annotated[str | None, Header(include_in_schema=False)] = None) -> None:
        """A page that was opened before the server was started anew with something else."""
        if mark not in (None, session.mark):
            raise UserError("another model is served here now: reload the page")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        close()

    app = FastAPI(
        title="SRM explorer",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses=ERRORS,
        dependencies=[Depends(same_model)],
    )
    app.state.close = close
    app.add_middleware(Guard, hosts=hosts)
    _add_errors(app)
    _add_questions(app, session, worker)
    _add_measured(app, session, worker)
    _add_features(app, session, worker)
    _add_jobs(app, session, jobs, worker)
    _add_page(app)
    return app


def _add_questions(app: FastAPI, session: Session, worker: Worker) -> None:
    def ask(request: Request, answer: Callable[[Session, B], T], body: B) -> Awaitable[T]:
        return worker.run(lambda: answer(session, body), request.is_disconnected)

    @app.get("/api/model")
    async def model() -> schema.Model:
        return schema.Model(**session.info())

    @app.post("/api/trace", response_class=Response, responses=BINARY)
    async def trace(body: schema.TraceRequest, request: Request) -> Response:
        return Response(await ask(request, questions.trace, body), media_type=BYTES)

    @app.post("/api/attention", response_class=Response, responses=BINARY)
    async def attention(body: schema.AttentionRequest, request: Request) -> Response:
        return Response(await ask(request, questions.attention, body), media_type=BYTES)

    @app.post("/api/intervene")
    async def intervene(body: schema.InterveneRequest, request: Request) -> schema.Bars:
        return await ask(request, questions.intervene, body)

    @app.post("/api/paths")
    async def paths(body: schema.PathsRequest, request: Request) -> schema.Paths:
        return await ask(request, questions.paths, body)

    @app.post("/api/generate")
    async def generate(body: schema.GenerateRequest, request: Request) -> schema.Tokens:
        return await ask(request, questions.generate, body)


def _add_measured(app: FastAPI, session: Session, worker: Worker) -> None:
    """What was measured over text, or is the first time it is asked for."""

    @app.get("/api/results/{name}")
    async def result(name: str) -> dict[str, Any]:
        if name not in session.saved:
            raise HTTPException(404, "no such result; /api/model lists them")
        return session.saved[name]

    @app.get("/api/switches/{layer}/{head}/{target}/{source}")
    async def switch(layer: int, head: int, target: int, source: int) -> schema.EdgeCard:
        return schema.EdgeCard(**session.switch((layer, head, target, source)))

    @app.get("/api/induction")
    async def induction(
        request: Request, checkpoint: Annotated[str, Query(max_length=200)] = ""
    ) -> schema.InductionScores:
        def work() -> schema.InductionScores:
            found = session.induction(checkpoint)
            return schema.InductionScores(
                score=found.score.tolist(),
                uniform=found.uniform,
                sequences=found.evidence.sequences,
                length=found.length,
            )

        return await worker.run(work, request.is_disconnected)


def _add_features(app: FastAPI, session: Session, worker: Worker) -> None:
    def ask(request: Request, work: Callable[[], T]) -> Awaitable[T]:
        return worker.run(work, request.is_disconnected)

    @app.get("/api/features")
    async def features(
        request: Request, query: Annotated[str, Query(max_length=200)] = ""
    ) -> list[schema.FeatureFound]:
        return [schema.FeatureFound(**one) for one in await ask(request, lambda: session.features(query))]

    @app.get("/api/features/{stream}/{feature}")
    async def feature(stream: int, feature: int, request: Request) -> schema.FeatureCard:
        return schema.FeatureCard(**await ask(request, lambda: session.feature(stream, feature)))

    @app.put("/api/features/{stream}/{feature}")
    async def note(
        stream: int, feature: int, body: schema.NoteRequest, request: Request
    ) -> schema.FeatureCard:
        given = Note(body.label.strip(), body.pinned)
        return schema.FeatureCard(**await ask(request, lambda: session.note_feature(stream, feature, given)))

    @app.get("/dictionary", include_in_schema=False)
    async def page(request: Request) -> Response:
        return Response(await ask(request, session.dictionary_page), media_type="text/html")


def _add_jobs(app: FastAPI, session: Session, jobs: Jobs, worker: Worker) -> None:
    def state(job: Job | None) -> schema.JobState:
        if job is None:
            raise HTTPException(404, "no such job; it may have expired")
        pieces = list(job.pieces) if job.status != "running" else []
        return schema.JobState(
            id=job.id, status=job.status, done=job.done, total=job.total, error=job.error, pieces=pieces
        )

    @app.post("/api/sweep")
    async def sweep(body: schema.SweepRequest, request: Request) -> schema.JobState:
        def prepare() -> list[int]:
            streams_of(session.subject(body.checkpoint).model, "a sweep")
            return questions.read(session, body)

        tokens = await worker.run(prepare, request.is_disconnected)
        pieces = session.sweep(tokens, body.mode, body.checkpoint)
        return state(jobs.start(session.model.depth * len(session.model.streams), pieces))

    @app.get("/api/jobs/{id}")
    async def job(id: str) -> schema.JobState:
        return state(jobs.get(id))

    @app.delete("/api/jobs/{id}")
    async def stop(id: str) -> schema.JobState:
        return state(jobs.stop(id))


def _add_page(app: FastAPI) -> None:
    for path, content in static_files().items():
        kind = TYPES.get(path.rsplit(".", 1)[-1], "application/octet-stream")

        def serve(content: bytes = content, kind: str = kind) -> Response:
            return Response(content, media_type=kind)

        app.add_api_route(f"/{path}", serve, methods=["GET"], include_in_schema=False)
        if path == "index.html":
            app.add_api_route("/", serve, methods=["GET"], include_in_schema=False)


def _add_errors(app: FastAPI) -> None:
    def line(status: int, text: str, **headers: str) -> JSONResponse:
        return JSONResponse({"error": text.split("\n")[0]}, status, headers=headers)

    @app.exception_handler(UserError)
    async def bad_input(_: Request, error: UserError) -> JSONResponse:
        return line(422, str(error))

    @app.exception_handler(TooLong)
    async def too_long(_: Request, error: TooLong) -> JSONResponse:
        return line(422, str(error), **{"Token-Limit": str(error.limit)})

    @app.exception_handler(RequestValidationError)
    async def bad_request(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return line(400, "the request is not valid JSON")
        where = ".".join(
            str(part) for part in first["loc"][1:] if isinstance(part, int) or part.isidentifier()
        )
        return line(422, f"{where or 'request'}: {first['msg'].removeprefix('Value error, ')}")

    @app.exception_handler(Busy)
    async def busy(_: Request, __: Busy) -> JSONResponse:
        return line(429, "too many questions are waiting; try again in a moment", **{"Retry-After": "1"})

    @app.exception_handler(Gone)
    async def gone(_: Request, __: Gone) -> JSONResponse:
        return line(422, "the request was withdrawn")

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        return line(error.status_code, str(error.detail), **dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        return line(500, f"{type(error).__name__}: {error}")

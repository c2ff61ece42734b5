"""Spans of responses: a response is a trace, a thread a span; without OpenTelemetry, nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from pasta_lm.serve.app import create_app
from pasta_lm.serve.backends import ScriptedBackend, TorchBackend
from pasta_lm.serve.tracing import ENDPOINTS, ResponseSpans, is_configured
from tests.serve.conftest import CHAT, TEXT, client_of, run, scripted
from tests.serve.test_failures import Held, Poisoned, is_idle, settle
from tests.serve.test_torch import chat, model

PATH = "/v1/chat/completions"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


def spanned(backend: Any, exporter: SpanExporter, *, logs_prompts: bool = False) -> FastAPI:
    """Return an application whose spans go to an exporter."""
    app = create_app(backend, logs_prompts=logs_prompts)
    app.state.service.spans = ResponseSpans(exporter, logs_prompts=logs_prompts)
    return app


def spans_of(
    body: Mapping[str, Any],
    backend: Any = None,
    *,
    path: str = PATH,
    headers: Mapping[str, str] | None = None,
    logs_prompts: bool = False,
) -> tuple[Any, list[ReadableSpan]]:
    """Return the reply to one request, and the spans that it left."""
    exporter = InMemorySpanExporter()
    app = spanned(backend or scripted(), exporter, logs_prompts=logs_prompts)

    async def reply() -> httpx.Response:
        async with client_of(app) as client:
            return await client.post(path, json=body, headers=headers)

    return run(reply()), list(exporter.get_finished_spans())


def root_of(spans: Sequence[ReadableSpan]) -> ReadableSpan:
    (root,) = (span for span in spans if span.kind is SpanKind.SERVER)
    return root


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def threads_of(spans: Sequence[ReadableSpan]) -> list[ReadableSpan]:
    threads = [span for span in spans if span.name.startswith("thread")]
    return sorted(threads, key=lambda one: attributes(one)["pasta.thread.id"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_a_trace_and_a_thread_a_span(stream: bool) -> None:
    reply, spans = spans_of({**CHAT, "stream": stream, "seed": 3, "max_tokens": 100})
    assert reply.status_code == 200
    root = root_of(spans)
    assert root.name == "chat script"
    found = attributes(root)
    assert found.pop("gen_ai.response.id").startswith("chatcmpl-")
    assert found.pop("pasta.parallelism")[0] > 1
    assert found.pop("pasta.critical_path_tokens")[0] > 0
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "pasta-lm",
        "gen_ai.request.model": "script",
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.seed": 3,
        "gen_ai.request.stream": stream,
        "gen_ai.response.model": "script",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 44,
        "pasta.strategy": "pasta",
        "pasta.num_threads": (4,),
    }
    assert sorted(span.name for span in spans) == sorted(
        [root.name, "queue", "prefill", "thread 0", "thread 1", "thread 2", "thread 3"]
    )
    main, *others = threads_of(spans)
    assert [attributes(span)["pasta.thread.parent"] for span in others] == [0, 0, 0]
    assert "pasta.thread.parent" not in attributes(main)
    assert sum(attributes(span)["pasta.thread.num_tokens"] for span in (main, *others)) == 44
    for span in (main, *others):
        assert attributes(span)["pasta.thread.finish_reason"]
        assert "pasta.thread.topic" not in attributes(span)
    assert all(attributes(span)["pasta.thread.promised_tokens"] > 0 for span in others)


def test_spans_lie_within_their_parents_and_follow_each_other() -> None:
    _, spans = spans_of(chat("hello", seed=1), TorchBackend(model(), "tiny"))
    root = root_of(spans)
    by_id = {span.context.span_id: span for span in spans if span.context}
    for span in spans:
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time
        assert root.start_time is not None
        assert root.start_time <= span.start_time
        if span is not root:
            assert span.parent is not None
            parent = by_id[span.parent.span_id]
            assert parent.start_time is not None
            assert parent.start_time <= span.start_time
    (queue,) = (span for span in spans if span.name == "queue")
    (prefill,) = (span for span in spans if span.name == "prefill")
    assert queue.end_time == prefill.start_time
    threads = threads_of(spans)
    assert len(threads) > 3, "two samples, of which one forks at least"
    assert {attributes(span)["pasta.sample"] for span in threads} == {0, 1}
    for span in threads:
        parent_id = attributes(span).get("pasta.thread.parent")
        assert span.parent is not None
        name = root.name if parent_id is None else f"thread {parent_id}"
        assert by_id[span.parent.span_id].name == name


def test_several_prompts_are_one_trace() -> None:
    body = {"prompt": ["Once", "Twice and again"], "n": 2}
    _, spans = spans_of(body, path="/v1/completions")
    assert root_of(spans).name == "text_completion script"
    assert len({span.context.trace_id for span in spans if span.context}) == 1
    assert [span.name for span in spans].count("queue") == 2
    tokens = [attributes(s)["gen_ai.usage.input_tokens"] for s in spans if s.name == "prefill"]
    assert sorted(tokens) == [1, 3]
    samples = [attributes(span)["pasta.sample"] for span in threads_of(spans)]
    assert sorted(samples) == sorted([*range(4)] * 4)


def test_a_traceparent_is_the_parent() -> None:
    _, spans = spans_of(CHAT, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    root = root_of(spans)
    assert root.parent is not None
    assert f"{root.parent.span_id:016x}" == PARENT
    assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {TRACE}


def test_a_caller_that_is_not_sampled_gets_no_spans() -> None:
    reply, spans = spans_of(CHAT, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    assert (reply.status_code, spans) == (200, [])


@pytest.mark.parametrize("header", ["", "00", "00-0-0-01", "\u00e9" * 55, "f" * 4000])
def test_a_broken_traceparent_begins_a_trace_of_its_own(header: str) -> None:
    reply, spans = spans_of(CHAT, headers={"traceparent": header.encode("latin-1")})  # type: ignore[dict-item]
    assert reply.status_code == 200
    assert root_of(spans).parent is None


def test_topics_are_there_when_prompts_are_logged() -> None:
    _, spans = spans_of(CHAT, logs_prompts=True)
    topics = [attributes(span).get("pasta.thread.topic") for span in threads_of(spans)]
    assert topics == [None, "walk", "sleep", "eat"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_failed_response_says_why(stream: bool) -> None:
    backend = ScriptedBackend(Poisoned(CHAT["messages"][0]["content"], 4))
    _, spans = spans_of({**CHAT, "stream": stream}, backend)
    root = root_of(spans)
    assert attributes(root)["error.type"] == "engine_error"
    assert root.status.status_code is StatusCode.ERROR
    assert {span.name for span in spans} == {root.name, "queue"}


def test_a_client_that_goes_away_leaves_its_span() -> None:
    exporter = InMemorySpanExporter()
    app = spanned(Held(), exporter)

    async def leave() -> None:
        async with client_of(app) as client:
            gone = asyncio.ensure_future(client.post(PATH, json=CHAT))
            await settle(lambda: app.state.service.engine.load.num_running == 1)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            await settle(lambda: is_idle(app))

    run(leave())
    root = root_of(exporter.get_finished_spans())
    assert attributes(root)["error.type"] == "client_gone"
    assert "gen_ai.usage.output_tokens" not in attributes(root)


class Broken(SpanExporter):
    """An exporter that always fails."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise ConnectionError("no collector")

    def shutdown(self) -> None:
        raise ConnectionError("no collector")


def test_a_broken_exporter_concerns_no_client() -> None:
    app = spanned(scripted(), Broken())

    async def ask_twice() -> list[str]:
        async with client_of(app) as client:
            replies = [await client.post(PATH, json=CHAT) for _ in range(2)]
            return [reply.json()["choices"][0]["message"]["content"] for reply in replies]

    assert run(ask_twice()) == [TEXT, TEXT]


def test_spans_that_cannot_be_written_concern_no_client(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> str:
        raise ValueError("a bug")

    monkeypatch.setattr(ResponseSpans, "_write", fail)
    reply, spans = spans_of(CHAT)
    assert (reply.status_code, spans) == (200, [])
    assert "cannot be written" in caplog.text


# The environment


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({ENDPOINTS[0]: "http://127.0.0.1:4318"}, True),
        ({ENDPOINTS[1]: "http://127.0.0.1:4318/v1/traces"}, True),
        ({ENDPOINTS[0]: " "}, False),
        ({ENDPOINTS[0]: "http://a", "OTEL_SDK_DISABLED": "true"}, False),
        ({ENDPOINTS[0]: "http://a", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_SERVICE_NAME": "a"}, False),
    ],
)
def test_the_environment_says_whether_there_are_spans(
    environment: dict[str, str], expected: bool
) -> None:
    assert is_configured(environment) is expected


def test_nothing_is_loaded_when_nothing_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*ENDPOINTS, "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    code = (
        "import sys; from tests.serve.conftest import *\n"
        "assert ask('POST', '/v1/chat/completions', json=CHAT).status_code == 200\n"
        "found = [name for name in sys.modules if name.startswith('opentelemetry.sdk')]\n"
        "sys.exit(' '.join(found) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_the_extra_the_server_says_so_and_serves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENDPOINTS[0], "http://127.0.0.1:9")
    monkeypatch.setattr("pasta_lm.serve.tracing.find_spec", lambda _: None)
    app = create_app(scripted())
    assert app.state.service.spans is None
    assert "pasta-lm[otel]" in caplog.text


def test_a_collector_on_loopback_gets_the_spans(
    monkeypatch: pytest.MonkeyPatch, until: Callable[[Callable[[], bool]], None]
) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        Thread(target=collector.serve_forever, daemon=True).start()
        monkeypatch.setenv(ENDPOINTS[0], f"http://127.0.0.1:{collector.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")

        async def reply() -> int:
            async with client_of(create_app(scripted())) as client:
                return (await client.post(PATH, json=CHAT)).status_code

        assert run(reply()) == 200
        until(lambda: bool(bodies))
        collector.shutdown()
    (resource,) = ExportTraceServiceRequest.FromString(bodies[0]).resource_spans
    about = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert about["service.name"] == "pasta-lm"
    assert about["deployment.environment"] == "test"
    names = {span.name for scope in resource.scope_spans for span in scope.spans}
    assert names >= {"chat script", "queue", "thread 0", "thread 3"}


def test_a_collector_that_is_not_there_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINTS[0], "http://127.0.0.1:9")
    app = create_app(scripted())

    async def reply() -> httpx.Response:
        async with client_of(app) as client:
            return await client.post(PATH, json=CHAT)

    assert run(reply()).json()["choices"][0]["message"]["content"] == TEXT

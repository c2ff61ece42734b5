"""OpenTelemetry spans of responses: a response is a trace, each of its threads a span.

They are made from the record of a response when it has ended, so that decoding costs nothing more.
The standard ``OTEL_*`` variables say where they go; without them, or without the extra ``otel``,
there are none. What goes wrong here is written into the log and concerns no client.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from threading import Thread
from typing import TYPE_CHECKING, Any

from pasta_lm.serve.replies import Reply
from pasta_lm.serve.response_stream import ResponseStream

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer

    from pasta_lm.engines.request import Answer
    from pasta_lm.interpreter.trace import ThreadRecord, Trace

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
FLUSH_S = 5.0  # for the last spans when the server ends; a collector may be gone by then
NS = 1_000_000_000

Attributes = dict[str, Any]


def is_configured(environment: Mapping[str, str]) -> bool:
    """Return whether the environment asks for spans."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    return exporter != "none" and (
        bool(exporter) or any(environment.get(name, "").strip() for name in ENDPOINTS)
    )


def spans_from_environment(*, logs_prompts: bool) -> ResponseSpans | None:
    """Return what the ``OTEL_*`` variables ask for; None if that is nothing, or cannot be had."""
    if not is_configured(os.environ):
        return None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        log.warning("no spans: OpenTelemetry is not installed; pip install 'pasta-lm[otel]'")
        return None
    try:
        return ResponseSpans(_exporter(), logs_prompts=logs_prompts)
    except Exception:
        log.exception("no spans: OpenTelemetry cannot be set up")
        return None


def _exporter() -> SpanExporter:
    if os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


class ResponseSpans:
    """Writes the spans of responses; a thread of its own sends them, and drops what is too much."""

    def __init__(self, exporter: SpanExporter, *, logs_prompts: bool) -> None:
        """Send spans to an exporter; ``OTEL_*`` variables set the sampler and the queue.

        Args:
            exporter: Where they go.
            logs_prompts: Add the topics of threads, which tell what an answer is about.
        """
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        # What the environment says about the service wins over this name.
        name = os.environ.get("OTEL_SERVICE_NAME") or "pasta-lm"
        self._provider = TracerProvider(resource=Resource.create({"service.name": name}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer: Tracer = self._provider.get_tracer("pasta_lm.serve")
        self._logs_prompts = logs_prompts

    def write(
        self, reply: Reply, streams: Sequence[ResponseStream], headers: Mapping[str, str]
    ) -> str | None:
        """Write the spans of a response that has ended, and return the id of their trace.

        Args:
            reply: What was asked and answered.
            streams: Of each prompt, when it came and when it began to run.
            headers: Of the HTTP request; a ``traceparent`` among them is the parent.
        """
        try:
            return self._write(reply, streams, headers)
        except Exception:
            log.exception("the spans of a response cannot be written")
            return None

    def _write(
        self, reply: Reply, streams: Sequence[ResponseStream], headers: Mapping[str, str]
    ) -> str:
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind, StatusCode, format_trace_id, set_span_in_context

        zero_ns = time.time_ns() - int(time.monotonic() * NS)
        arrived_ns = zero_ns + int(min(one.arrived_s for one in streams) * NS)
        operation = "chat" if reply.is_chat else "text_completion"
        span = self._tracer.start_span(
            f"{operation} {reply.model}",
            context=extract(headers),
            kind=SpanKind.SERVER,
            attributes=_asked(reply, operation) | _answered(reply),
            start_time=arrived_ns,
        )
        if not reply.is_complete:
            span.set_attribute("error.type", reply.error or "client_gone")
            span.set_status(StatusCode.ERROR)
        if span.is_recording():
            context = set_span_in_context(span)
            for number, stream in enumerate(streams):
                self._write_prompt(context, reply, stream, number, zero_ns)
        span.end()
        return format_trace_id(span.get_span_context().trace_id)

    def _write_prompt(
        self, context: Context, reply: Reply, stream: ResponseStream, number: int, zero_ns: int
    ) -> None:
        """Write the wait, the prefill and the threads of one prompt's samples."""
        arrived_ns = zero_ns + int(stream.arrived_s * NS)
        if stream.started_s is None:
            self._span("queue", context, arrived_ns, time.time_ns(), {})
            return
        started_ns = zero_ns + int(stream.started_s * NS)
        self._span("queue", context, arrived_ns, started_ns, {})
        num_samples = stream.request.params.n
        samples = range(number * num_samples, (number + 1) * num_samples)
        answers = {sample: reply.answers[sample] for sample in samples if sample in reply.answers}
        for place, (sample, answer) in enumerate(answers.items()):
            if place == 0:
                prefill_ns = started_ns + int(answer.trace.prefill_s * NS)
                tokens = {"gen_ai.usage.input_tokens": len(stream.request.prompt)}
                self._span("prefill", context, started_ns, prefill_ns, tokens)
            self._write_threads(context, sample, answer, started_ns)

    def _write_threads(
        self, context: Context, sample: int, answer: Answer, started_ns: int
    ) -> None:
        contexts: dict[int | None, Context] = {None: context}
        times = thread_times(answer.trace)
        for thread in answer.trace.threads:  # a parent stands before its children
            began_s, ended_s = times[thread.id]
            contexts[thread.id] = self._span(
                f"thread {thread.id}",
                contexts.get(thread.parent, context),
                started_ns + int(began_s * NS),
                started_ns + int(ended_s * NS),
                dict(self._about(thread, sample)),
            )

    def _about(self, thread: ThreadRecord, sample: int) -> Iterator[tuple[str, Any]]:
        yield "pasta.sample", sample
        yield "pasta.thread.id", thread.id
        yield "pasta.thread.num_tokens", thread.num_tokens
        if thread.parent is not None:
            yield "pasta.thread.parent", thread.parent
        if thread.promised_tokens is not None:
            yield "pasta.thread.promised_tokens", thread.promised_tokens
        if thread.finish_reason is not None:
            yield "pasta.thread.finish_reason", thread.finish_reason
        if self._logs_prompts and thread.topic is not None:
            yield "pasta.thread.topic", thread.topic

    def _span(
        self, name: str, context: Context, began_ns: int, ended_ns: int, attributes: Attributes
    ) -> Context:
        from opentelemetry.trace import set_span_in_context

        span = self._tracer.start_span(
            name, context=context, attributes=attributes, start_time=began_ns
        )
        span.end(max(began_ns, ended_ns))
        return set_span_in_context(span)

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        # It waits for a collector that does not answer longer than the end of a server may take.
        closing = Thread(target=self._shut_down, name="pasta-spans", daemon=True)
        closing.start()
        closing.join(FLUSH_S)

    def _shut_down(self) -> None:
        try:
            self._provider.shutdown()
        except Exception:
            log.exception("the last spans cannot be sent")


def thread_times(trace: Trace) -> dict[int, tuple[float, float]]:
    """Return when each thread began and ended, in seconds since its request began to run.

    A thread begins with the step that feeds its first token, and ends with its last token.
    """
    ended_s: dict[int, float] = {}
    began_s: dict[int, float] = {}
    for token in trace.tokens:
        began_s[token.thread] = min(began_s.get(token.thread, token.t_s), token.t_s)
        ended_s[token.thread] = max(ended_s.get(token.thread, token.t_s), token.t_s)
    times = {}
    for thread in trace.threads:
        end_s = ended_s.get(thread.id, trace.wall_s)
        step = thread.start_step
        if step is None or step > len(trace.step_s):
            step_s = end_s
        else:
            step_s = trace.step_s[step - 1] if step > 0 else trace.prefill_s
        times[thread.id] = min(began_s.get(thread.id, end_s), step_s), end_s
    return times


def _asked(reply: Reply, operation: str) -> Attributes:
    params = reply.request.params
    found = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "pasta-lm",
        "gen_ai.request.model": reply.model,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k,
        "gen_ai.request.seed": params.seed,
        "gen_ai.request.choice.count": params.n if params.n > 1 else None,
        "gen_ai.request.stream": bool(reply.asked.stream),
        "gen_ai.response.id": reply.id,
        "gen_ai.response.model": reply.model,
        "pasta.strategy": reply.request.strategy,
    }
    return {name: value for name, value in found.items() if value is not None}


def _answered(reply: Reply) -> Attributes:
    answers = [reply.answers[sample] for sample in sorted(reply.answers)]
    usage = reply.usage()
    found: Attributes = {"gen_ai.usage.input_tokens": usage["prompt_tokens"]}
    if answers:
        found |= {
            "gen_ai.usage.output_tokens": usage["completion_tokens"],
            "gen_ai.response.finish_reasons": [one.finish_reason for one in answers],
            "pasta.num_threads": [len(one.trace.threads) for one in answers],
            "pasta.parallelism": [float(one.trace.parallelism) for one in answers],
            "pasta.critical_path_tokens": [one.trace.critical_path for one in answers],
        }
    return found

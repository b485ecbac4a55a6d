# The operator's side in one image: service, keeper and dashboard. Built from the repository's root:
#   docker build -f docker/coordinator.Dockerfile -t manyhands-coordinator .
FROM debian:bookworm-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*
# The keeper computes on the CPU only to check; PyTorch's CPU wheel saves gigabytes of CUDA libraries.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /src
RUN python3 -m venv /opt/manyhands
# Third parties first: this layer is built again only when they change.
COPY pyproject.toml constraints.txt ./
RUN /opt/manyhands/bin/python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
print(*project['dependencies'], *project['optional-dependencies']['coordinator'], sep='\n')" > requirements.txt \
    && /opt/manyhands/bin/pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" \
        -c constraints.txt -r requirements.txt
COPY README.md LICENSE manyhands.py ./
COPY auth auth
COPY peer peer
COPY coordinator coordinator
COPY dashboards dashboards
RUN /opt/manyhands/bin/pip install --no-cache-dir --no-deps .

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home manyhands \
    && install -d -o manyhands -g manyhands -m 0700 /data
COPY --from=build /opt/manyhands /opt/manyhands
ENV PATH=/opt/manyhands/bin:$PATH PYTHONUNBUFFERED=1 HF_HOME=/data/cache
USER manyhands
WORKDIR /data
# The run's directory with its keys, database and checkpoints: `manyhands coordinator init /data/run` makes it once.
VOLUME /data
# Control plane (gRPC over TLS), web, swarm (libp2p).
EXPOSE 7443 8080 31337 31337/udp
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=4 \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
ENTRYPOINT ["manyhands"]
CMD ["coordinator", "serve", "/data/run"]

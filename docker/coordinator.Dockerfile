# The operator's side in one image: service, keeper, validator and dashboard. Built from the repository's root:
#   docker build -f docker/coordinator.Dockerfile -t manyhands-coordinator .
FROM debian:bookworm-slim AS build
# Debian's stable release changes for security only: its packages are taken as they are today.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3-pip python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
RUN python3 -m venv --without-pip /opt/manyhands
# Third parties first: this layer is built again only when they change.
COPY pyproject.toml constraints.txt ./
# Which optional parts of pyproject.toml, with commas between.
ARG EXTRAS=coordinator,s3
# The keeper computes on the CPU only to check; PyTorch's CPU wheel saves gigabytes of CUDA libraries.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python3 -c "import sys, tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
optional = project['optional-dependencies']; \
print(*project['dependencies'], *sum((optional[name] for name in sys.argv[1].split(',')), []), sep='\n')" "$EXTRAS" \
        > requirements.txt \
    && python3 -m pip --python /opt/manyhands/bin/python install --no-cache-dir --extra-index-url "$TORCH_INDEX" \
        -c constraints.txt -r requirements.txt
COPY README.md LICENSE manyhands.py ./
COPY auth auth
COPY peer peer
COPY coordinator coordinator
COPY dashboards dashboards
# The page about taking part offers it; dashboards/ has a link to it.
COPY notebooks/join.ipynb notebooks/
# The guide that the web port serves; what builds it stays in this stage.
COPY mkdocs.yml CHANGELOG.md SECURITY.md ./
COPY docs docs
RUN python3 -m pip --python /opt/manyhands/bin/python install --no-cache-dir -c constraints.txt --target /opt/mkdocs \
        mkdocs-material \
    && PYTHONPATH=/opt/mkdocs /opt/manyhands/bin/python -m mkdocs build --strict --quiet
RUN python3 -m pip --python /opt/manyhands/bin/python install --no-cache-dir --no-deps -c constraints.txt .
# Tests of others, and what one compiles against: an eighth of it all.
RUN find /opt/manyhands/lib -regextype egrep \
        -regex '.*/site-packages/(torch/(test|include|share)|pandas/tests|pyarrow/(tests|include))' -prune -exec rm -r {} + \
    && find /opt/manyhands/lib -path '*/torch/bin/*' -not -name torch_shm_manager -delete

FROM debian:bookworm-slim
LABEL org.opencontainers.image.title="manyhands coordinator" \
    org.opencontainers.image.description="Serves a run in which volunteers train one language model together." \
    org.opencontainers.image.licenses="Apache-2.0"
# tini is process 1: it reaps what hivemind's processes leave behind, and hands on signals.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home manyhands \
    && install -d -o manyhands -g manyhands -m 0700 /data
# The mount point of the service `backup`: a new volume there begins as a copy of it, and so belongs to this user.
RUN install -d -o manyhands -g manyhands -m 0700 /backups
COPY --from=build /opt/manyhands /opt/manyhands
COPY docker/serve-run docker/back-up-daily /usr/local/bin/
# The image is never written to: whatever a library keeps goes to the volume.
ENV PATH=/opt/manyhands/bin:$PATH PYTHONUNBUFFERED=1 MANYHANDS_IMAGE=manyhands-coordinator XDG_CACHE_HOME=/data/cache
USER 10001
WORKDIR /data
# The run, in /data/run: keys, settings, database, checkpoints.
VOLUME /data
# Control plane (gRPC over TLS), web, swarm (libp2p).
EXPOSE 7443 8080 31337 31337/udp
# The service answers by the database: the keeper runs, and has heard its own p2p daemon of late. A first start trains the
# run's tokenizer before anything is served. What it prints is in `docker inspect`.
HEALTHCHECK --interval=10s --timeout=5s --start-period=15m --retries=4 CMD ["python3", "-c", "\
import os, sys; from http.client import HTTPConnection; \
web = HTTPConnection('127.0.0.1', int(os.environ.get('MANYHANDS_WEB_PORT') or 8080), timeout=4); \
web.request('GET', '/readyz'); answer = web.getresponse(); print(answer.read().decode()); sys.exit(answer.status != 200)"]
ENTRYPOINT ["tini", "--"]
CMD ["serve-run"]

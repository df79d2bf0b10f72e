# The build is the check: it runs `make test` as the first command on a fresh machine would.
#   docker build -t lit_ctg .          with torch for CUDA; for CPUs tell pip where that wheel is, as below
#   docker build -t lit_ctg --build-arg PIP_EXTRA_INDEX_URL=<index of torch's CPU wheels> .
#   docker run --rm lit_ctg table paper=semantic_fusion
# Not built yet: there was no Docker where it was written. Of its commands, on Debian 12 with Python 3.11: the packages are all there
# (`apt-get install --simulate`), and `make test` and the table are run outside of a container.
FROM python:3.11-slim-bookworm
# git: records name the commit; chromium: the report as a browser shows it
RUN apt-get update \
 && apt-get install --yes --no-install-recommends make git gcc g++ chromium \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /app
ARG PIP_EXTRA_INDEX_URL PIP_FIND_LINKS
COPY . .
RUN make test PYTHON=python3.11
ENTRYPOINT ["/app/.venv/bin/lit-ctg"]
CMD ["--help"]

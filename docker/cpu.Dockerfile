# `image` of a target, with everything: Headway, torch, transformers. From the folder of the clone:
#
#   docker build -f docker/cpu.Dockerfile --build-arg BASE=python:3.12-slim@sha256:... -t headway-cpu .
#
# BASE, an image with Python 3.11 or later and pip, has no default: a tag can change under you. On x86_64 the torch of PyPI
# has the CUDA libraries, so the image is large, and all that docker/cuda.Dockerfile adds to it are two variables. If you have
# a smaller image with torch already, use that, and docker/core.Dockerfile as `coordinator.image`.
ARG BASE
FROM ${BASE}
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PIP_BREAK_SYSTEM_PACKAGES=1

# Pods run as 1000:1000 unless the target's pod.user and pod.group say otherwise. Home is /tmp: nothing else
# can be written.
RUN groupadd --gid 1000 headway \
 && useradd --uid 1000 --gid 1000 --no-create-home --home-dir /tmp headway

# For `memory: {compile: true}`: inductor compiles what runs on CPUs, Triton its launchers.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*

# Every package by version and hash, the test tools among them; a shorter list of your own may be named instead, if it has
# hatchling, which builds Headway below. Bytecode, too: in a pod the image cannot be written, so Python would compile every
# module again at every start. pip compiles what it installs; some bases have none for the standard library.
WORKDIR /opt/headway
ARG REQUIREMENTS=requirements/all.txt
COPY ${REQUIREMENTS} requirements.txt
RUN python3 -m pip install --compile --require-hashes --no-deps --only-binary=:all: -r requirements.txt \
 && python3 -m compileall -q -x '(site|dist)-packages' "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"

# Last, so that an edit of Headway leaves the layers above as they are. Your own code need not be in here:
# `code.path` of a run file is brought to the target's storage. The packages it imports do.
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python3 -m pip install --compile --no-deps --no-build-isolation . \
 && headway --version \
 && python3 -B -c 'import importlib.util as u, os; \
files = {n: u.cache_from_source(u.find_spec(n).origin) for n in ("torch", "transformers", "headway", "asyncio")}; \
lacking = [n for n, file in files.items() if not os.path.exists(file)]; \
assert not lacking, f"no bytecode: {lacking}"'

WORKDIR /
USER 1000:1000

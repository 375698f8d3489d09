# `image` of a target with NVIDIA GPUs: the image of docker/cpu.Dockerfile for x86_64, with what the driver
# needs. It has not been run on a GPU.
#
#   docker build -f docker/cuda.Dockerfile --build-arg BASE=REGISTRY/headway-cpu@sha256:... -t headway-cuda .
ARG BASE
FROM ${BASE}

USER 0:0
# What NVIDIA's container runtime gives to a container that asks for GPUs.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

RUN python3 -c 'import torch; assert torch.version.cuda, "BASE has a torch without CUDA"'
USER 1000:1000

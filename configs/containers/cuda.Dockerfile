# NVIDIA: slime's own image for SGLang 0.5.15.post1 on CUDA 12.9, slime at our pin, and the overlay.
#   docker build -f configs/containers/cuda.Dockerfile -t april:cuda .
# Its stack stays as it is, but for one thing: slime's image edits SGLang's sources (docker/patch/latest of slime), two of
# the functions that the overlay changes among them, and `april patch check` refuses those. The release's sources are put
# back; with them go slime's additions to SGLang (weights pulled from disk, top-p masks, deterministic kernels).
FROM slimerl/slime:nightly-dev-20260810a-cu129

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

ARG SGLANG_COMMIT=0b3bb0cbe31873994c9f989fddfe2f87ca839fdd
ARG SLIME_COMMIT=624b824a898ab0ec1fcb4d373004c7f3852bf515

RUN git -C /sgl-workspace/sglang checkout --force ${SGLANG_COMMIT} -- python

# Below /opt, where users other than root may read it: containers often run as the user who starts them.
RUN git clone --filter=blob:none https://github.com/THUDM/slime.git /opt/slime && \
    git -C /opt/slime checkout --quiet ${SLIME_COMMIT} && \
    python3 -m pip install --no-cache-dir --no-deps -e /opt/slime

COPY . /opt/april
RUN cd /opt/april && PYTHON=python3 python3 launch/bootstrap.py --device cuda && \
    chmod -R a+rX /opt/april /opt/slime /root/Megatron-LM /sgl-workspace/sglang && chmod a+x /root

ENV SLIME_DIR=/opt/slime PYTHONPATH=/root/Megatron-LM NCCL_GRAPH_REGISTER=0

# The image is not made where a patch would be refused.
RUN april patch check --sglang /sgl-workspace/sglang/python --slime /opt/slime

WORKDIR /opt/april

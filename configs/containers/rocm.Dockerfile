# AMD: SGLang's own image for MI300X and MI325X, to which Megatron-LM, Transformer Engine, slime and the overlay are added.
#   docker build -f configs/containers/rocm.Dockerfile -t april:rocm .
# Pausing memory gives nothing back on ROCm 7.2 (torch_memory_saver#83). Runs that share devices between trainer and
# engines and offload need a 7.0 base: --build-arg BASE=lmsysorg/sglang:v0.5.15.post1-rocm700-mi30x
# MI355X: --build-arg BASE=lmsysorg/sglang:v0.5.15.post1-rocm720-mi35x --build-arg GPU_ARCH=gfx950
ARG BASE=lmsysorg/sglang:v0.5.15.post1-rocm720-mi30x
FROM ${BASE}

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

ARG GPU_ARCH=gfx942
ARG MAX_JOBS=32
ARG SLIME_COMMIT=624b824a898ab0ec1fcb4d373004c7f3852bf515
# Those of slime's own images at that commit: docker/README.md, docker/Dockerfile.rocm_MI350-5
ARG MEGATRON_COMMIT=1dcf0dafa884ad52ffb243625717a3471643e087
ARG TRANSFORMER_ENGINE_COMMIT=90c04bcdc3c109505b318f40a39680263af55edf

RUN git clone https://github.com/ROCm/TransformerEngine.git /opt/TransformerEngine && \
    cd /opt/TransformerEngine && git checkout --quiet ${TRANSFORMER_ENGINE_COMMIT} && \
    git submodule update --init --recursive && \
    NVTE_FRAMEWORK=pytorch NVTE_USE_ROCM=1 NVTE_USE_HIPBLASLT=1 NVTE_ROCM_ARCH=${GPU_ARCH} MAX_JOBS=${MAX_JOBS} \
      python3 -m pip install --no-cache-dir --no-build-isolation . && \
    rm -rf /opt/TransformerEngine

RUN git clone --filter=blob:none https://github.com/THUDM/slime.git /opt/slime && \
    git -C /opt/slime checkout --quiet ${SLIME_COMMIT} && \
    git clone --filter=blob:none https://github.com/NVIDIA/Megatron-LM.git /opt/Megatron-LM && \
    git -C /opt/Megatron-LM checkout --quiet ${MEGATRON_COMMIT} && \
    git -C /opt/Megatron-LM apply /opt/slime/docker/patch/v0.5.15.post1/megatron.patch

# What slime needs, with torch and SGLang held where the base image has them.
RUN python3 -m pip freeze | grep -iE '^(torch|torchvision|torchaudio|triton|transformers|sgl[-_]kernel)==' >/tmp/held.txt && \
    python3 -m pip install --no-cache-dir -c /tmp/held.txt \
      accelerate blake3 blobfile datasets "httpx[http2]" numba numpy==1.26.4 omegaconf==2.4.0 pybind11 pylatexenc==2.11 \
      pyyaml qwen_vl_utils "ray[default]==2.60.0" safetensors sglang-router==0.3.2 tensorboard==2.21.0 wandb==0.31.0 \
      xxhash zstandard && \
    python3 -m pip install --no-cache-dir --no-deps -e /opt/slime -e /opt/Megatron-LM

COPY . /opt/april
RUN cd /opt/april && PYTHON=python3 python3 launch/bootstrap.py --device rocm && \
    chmod -R a+rX /opt/april /opt/slime /opt/Megatron-LM /sgl-workspace/sglang

ENV SLIME_DIR=/opt/slime PYTHONPATH=/opt/Megatron-LM NCCL_GRAPH_REGISTER=0 \
    RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES=1

# The image is not made where a patch would be refused.
RUN april patch check --sglang /sgl-workspace/sglang/python --slime /opt/slime

WORKDIR /opt/april

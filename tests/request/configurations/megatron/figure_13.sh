#!/bin/bash
# Pipeline-parallel size options = [2, 4, 8, 16, 32].
PP=2
# Batch size (global batch size) options = [32, 128].
GBS=32
TP=$((64/PP))
MBS=1
MEGATRON_EXTRA_PARAMS="--activations-checkpoint-method uniform "
export MEGATRON_PARAMS=" ${MEGATRON_EXTRA_PARAMS} \
	--tensor-model-parallel-size ${TP} \
	--pipeline-model-parallel-size ${PP} \
	--micro-batch-size ${MBS} \
	--global-batch-size ${GBS} \
	--DDP-impl local \
        --seq-length 2048 \
        --fp16 "
exit 0

#!/bin/bash
GPUS_PER_NODE=8
NUM_NODES=1
DISTRIBUTED_ARGS="
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes $NUM_NODES
"
T5_ARGS="
    --encoder-num-layers 12 \
    --encoder-seq-length 512 \
    --micro-batch-size 64 \
    --global-batch-size 512 \
    --bf16 \
    --tensor-model-parallel-size 1 \
    --pipeline-model-parallel-size 1 \
"
torchrun $DISTRIBUTED_ARGS pretrain_t5.py \
    $T5_ARGS \
    --distributed-backend nccl

#!/bin/bash
set -ex
TP=1
PP=1
MICRO_BATCH=1
NODES=1
GPN=8
GLOBAL_BATCH=$(( ${GPN} * ${MICRO_BATCH} * ${NODES} ))
CPU_OPTIM=" --cpu-optimizer"
ZERO_STAGE=3
cat <<EOT > ds_config.json
{
  "train_batch_size" : $GLOBAL_BATCH,
  "zero_optimization": { "stage": 3 }
}
EOT
ds_args=" "
ds_args=" --no-pipeline-parallel ${ds_args}"
ds_args=" --zero-stage=$ZERO_STAGE ${ds_args}"
ds_args=" --deepspeed-activation-checkpointing ${ds_args}"
deepspeed --force_multi --num_nodes=$NODES pretrain_gpt.py \
    --tensor-model-parallel-size $TP \
    --pipeline-model-parallel-size $PP \
    --micro-batch-size $MICRO_BATCH \
    --global-batch-size $GLOBAL_BATCH \
    --fp16 \
    --checkpoint-activations \
    $CPU_OPTIM $ds_args \
    --exit-interval 5000 | tee output.log

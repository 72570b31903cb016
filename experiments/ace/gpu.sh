#!/bin/bash
# The recorded runs on the lent GPU:  bash experiments/ace/gpu.sh SECONDS STAGE,STAGE...
# Reads carry/{py,cifar10,cifar100,news,encoder} (whichever are there), keeps records in $RESULTS so that the next call
# goes on, and leaves $OUT/records.tgz (all records so far) and $OUT/log.txt. See gpu.py for the stages; stages of
# different models take a RESULTS of their own and may run beside each other.
LIMIT=$1
STAGES=$2
OUT=${OUT:-/tmp/acefl-gpu}
RESULTS=${RESULTS:-carry/results}
mkdir -p "$OUT" "$RESULTS"
export PYTHONUNBUFFERED=1 PYTHONPATH=src:.:carry/py HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=true OMP_NUM_THREADS=1
export FL_DATA_CACHE=/tmp/fl_data
BEGAN=$SECONDS

pack() { tar czf "$OUT/.records.tgz" -C "$RESULTS" . && mv "$OUT/.records.tgz" "$OUT/records.tgz"; }
trap pack EXIT

# With MPS, processes share the GPU at the same time instead of taking turns: small kernels then fill it.
WORKERS=4
if [ -z "$NO_MPS" ] && command -v nvidia-cuda-mps-control >/dev/null; then
  export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mps-log
  mkdir -p /tmp/mps /tmp/mps-log
  pgrep -f "nvidia-cuda-mps-control -d" >/dev/null || nvidia-cuda-mps-control -d
  if timeout 60 python3 -c "import torch; torch.ones(8, device='cuda').sum().item()"; then
    WORKERS=6
  else
    echo quit | timeout 10 nvidia-cuda-mps-control
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  fi
fi
echo "workers $WORKERS, mps ${CUDA_MPS_PIPE_DIRECTORY:-none}, started after $((SECONDS - BEGAN)) s" | tee "$OUT/log.txt"
( while sleep 45; do pack; nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader; done ) >> "$OUT/log.txt" 2>&1 &
PACKER=$!
LEFT=$((LIMIT - (SECONDS - BEGAN) - 15))
timeout -k 10 $((LEFT + 10)) python3 experiments/ace/gpu.py --out "$RESULTS" --limit "$LEFT" --workers "${GPU_WORKERS:-$WORKERS}" \
  --stages "$STAGES" 2>&1 | tee -a "$OUT/log.txt"
kill $PACKER

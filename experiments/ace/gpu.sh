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

# Packed images travel well, but acefl reads only plain layouts.
for folder in carry/cifar10 carry/cifar100; do
  if [ -e $folder/fl_data.py ] && ! ls $folder/cifar-*/test*.bin >/dev/null 2>&1; then
    python3 experiments/convert_data.py $folder || exit 1
  fi
done

pack() { tar czf "$OUT/.records.tgz" -C "$RESULTS" . && mv "$OUT/.records.tgz" "$OUT/records.tgz"; }
trap pack EXIT

# A ResNet run takes up to 14 GB of the GPU's memory, one of the small network 10. Three at a time fill the GPU's
# arithmetic; more only wait for each other, and one that runs out of memory has lost its time.
( while sleep 45; do pack; nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader; done ) >> "$OUT/log.txt" 2>&1 &
PACKER=$!
timeout -k 10 $((LIMIT - 5)) python3 experiments/ace/gpu.py --out "$RESULTS" --limit $((LIMIT - 15)) --workers "${GPU_WORKERS:-3}" \
  --stages "$STAGES" 2>&1 | tee -a "$OUT/log.txt"
kill $PACKER

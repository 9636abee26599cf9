#!/usr/bin/env bash
# The main job on the embedded data set: generate it, train on two ranks,
# evaluate the checkpoint on two ranks, and leave images.
#
# usage: tools/demo.sh [WORK_DIR]
set -euo pipefail
cd "$(dirname "$0")/.."

work_dir=${1:-work_dirs/demo}
config=configs/megdet/shapes_r18_fpn.py
python=${PYTHON:-python}
export SHAPES_ROOT=${SHAPES_ROOT:-data/shapes}

phase() {
  printf '\n==> %s\n' "$*"
}

SECONDS=0
phase 'Generating the data set'
PYTHONPATH=. "$python" -m mmdet_megdet.demo_data "$SHAPES_ROOT"
generated=$SECONDS

phase 'Training on two ranks'
tools/dist_train.sh "$config" 2 --work-dir "$work_dir"
trained=$SECONDS

phase 'Evaluating the checkpoint on two ranks'
checkpoint=$(cat "$work_dir/last_checkpoint")
tools/dist_test.sh "$config" "$checkpoint" 2 \
  --work-dir "$work_dir" --show-dir detections | tee "$work_dir/test.log"
"$python" tools/analysis/plot_log.py "$work_dir" \
  --out "$work_dir/training.png"
"$python" tools/analysis/plot_bn_stats.py "$work_dir"
tested=$SECONDS

phase 'Done'
echo "Generated in ${generated} s, trained in $((trained - generated)) s," \
  "evaluated in $((tested - trained)) s."
echo "AP: $(grep -oE 'coco/(bbox|segm)_mAP(_50)?: [0-9.]+' \
  "$work_dir/test.log" | sort -u | paste -sd' ' -)"
echo "Losses and learning rate: $work_dir/training.png"
echo "BatchNorm: $work_dir/bn_stats"
echo "Detections: $(find "$work_dir" -path '*detections*' -name '*.png' \
  -newer "$checkpoint" | head -n 1 | xargs -r dirname)"

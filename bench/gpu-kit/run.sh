#!/usr/bin/env bash
# Runs cgpu on this machine's GPU and writes JSON results. Needs the driver and Python 3; uses nvcc and PyTorch where they are.
#
#   ./run.sh [RESULTS-FILE]     default: results.json beside this script
#
# Takes about two minutes. Changes no setting of the GPU and takes no managed memory.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/kit.py" --kit "$here" --out "${1:-$here/results.json}"

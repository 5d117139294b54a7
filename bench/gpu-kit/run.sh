#!/bin/sh
# Tries cgpu on this machine's GPU. Needs the driver and Python 3.8; uses nvcc and PyTorch where
# they are.
#
#   ./run.sh                  all rows but those of --long and --gate: about five minutes
#   ./run.sh --long           shares over five minutes and after three idle ones: nine minutes
#   ./run.sh --whole          all rows, best as root: half an hour; the same command goes on with a
#                             run that was stopped
#   ./run.sh --gate           what a gate on the device would need: about a minute
#   ./run.sh --only ROW ...   these rows
#   ./run.sh --quick          shorter measurements: about two minutes
#   ./run.sh --list           the rows, what each shows and its time limit
#   ./run.sh --out DIR        where the results go (default: results/ beside this script)
#
# No other run takes more than ten minutes. Results are written after each row and survive an
# interruption; the last line names the archive to bring back. Changes no setting of the GPU,
# requests at most 1 MiB of managed memory, which cgpu refuses, and ends only what it started.
# PYTHON names another interpreter, such as the one that has PyTorch.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))'; then
    echo "run.sh: $python is not a Python 3.8 or newer: install one, or set PYTHON" >&2
    exit 2
fi
# -B: the folder may be read-only; -u: output appears at once, whatever ends the run.
exec "$python" -B -u "$here/kit.py" "$@"

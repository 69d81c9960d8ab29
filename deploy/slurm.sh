#!/usr/bin/env bash
# One run as a Slurm job: 1 ps + 3 workers, needs no GPU.   sbatch deploy/slurm.sh downpour --epochs 50
# The first --ps tasks are parameter servers; ports follow from the numbers of job and step, or are those that Slurm has
# reserved. Submit it from the checkout, on a file system that all nodes share, after `bash run.sh list` has set it up.
# A node that dies ends the run, with the name of its task. When Slurm has noticed (SlurmdTimeout), it puts the job back
# into the queue, and the run resumes from its newest checkpoint, perhaps on other nodes. scancel ends it with code 143.
# A minute before the time limit, --signal interrupts the run (code 138), which writes its center and a last checkpoint:
# the job goes back into the queue, and resumes from there. Another signal than USR1 needs --stop-signals, as in USR2.
#SBATCH --job-name=distsgd
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=2
#SBATCH --time=01:00:00
#SBATCH --output=distsgd-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR1@60
set -euo pipefail

if [ $# -eq 0 ]; then
    set -- downpour
fi
code=0
srun --distribution=block --kill-on-bad-exit=0 --label \
    bash run.sh "$@" --cluster slurm --run-dir "runs/slurm-$SLURM_JOB_ID" || code=$?
if [ "$code" -eq 138 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"

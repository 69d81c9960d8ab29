#!/usr/bin/env bash
# One run as a Slurm job: 1 ps + 3 workers, needs no GPU.   sbatch deploy/slurm.sh downpour --epochs 50
# The first --ps tasks are parameter servers; ports follow from the numbers of job and step, or are those that Slurm has
# reserved. Submit it from the checkout, on a file system that all nodes share, after `bash run.sh list` has set it up.
# A node that dies ends the run, with the name of its task. When Slurm has noticed (SlurmdTimeout), it puts the job back
# into the queue, and the run resumes from its newest checkpoint, perhaps on other nodes. scancel ends it with code 143.
#SBATCH --job-name=distsgd
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=2
#SBATCH --time=01:00:00
#SBATCH --output=distsgd-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
set -euo pipefail

if [ $# -eq 0 ]; then
    set -- downpour
fi
exec srun --distribution=block --kill-on-bad-exit=0 --label \
    bash run.sh "$@" --cluster slurm --run-dir "runs/slurm-$SLURM_JOB_ID"

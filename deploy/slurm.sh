#!/usr/bin/env bash
# One run as a Slurm job: 1 ps + 3 workers, needs no GPU.   sbatch deploy/slurm.sh downpour --epochs 50
# The first --ps tasks are parameter servers; ports follow from the job's number. Submit it from the checkout, on a file
# system that all nodes share, after `bash run.sh list` has set it up once.
#SBATCH --job-name=distsgd
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=2
#SBATCH --time=01:00:00
#SBATCH --output=distsgd-%j.log
set -euo pipefail

if [ $# -eq 0 ]; then
    set -- downpour
fi
exec srun --distribution=block --kill-on-bad-exit=0 --label \
    bash run.sh "$@" --cluster slurm --run-dir "runs/slurm-$SLURM_JOB_ID"

# Bisects the update with one thread; ends with 0 where both versions then give the same bits.
stackbisect run --fresh --name one-thread --runtime venv --package numpy --good 2.1.3 --bad 2.2.0 \
    --env OPENBLAS_NUM_THREADS=1 -- python train.py
test $? = 1 # not reproduced

"""The question's listing, task 0 (the in-graph client), in today's API.

    labctl run examples/question/client.py              # on the lab, whose task 1 runs the join server
    labctl run examples/question/client.py -- --gpu     # the question's GPU lines

By hand, on the question's two machines: `python server.py` on 10.132.0.3, then `python client.py` on 10.132.0.2.
What differs from the listing, and what is wrong with it, is in README.md beside this file.
"""

# ------------------------------------------------------------------
import time

stopwatch = time.perf_counter()  # the listing's zmq.Stopwatch: started before the imports
# ------------------------------------------------------------------
import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
from datetime import datetime  # noqa: E402

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

options = argparse.ArgumentParser(
    description="The question's A^n + B^n; it computes n + 1 factors."
)
options.add_argument("--gpu", action="store_true", help="form the products on gpu:0, not cpu:0")
options.add_argument("-n", type=int, default=5, help="n as in the question (5)")
options.add_argument("-L", type=int, default=1000, help="rows and columns (1000)")
options = options.parse_args()

n = options.n
L = options.L
unit = "gpu:0" if options.gpu else "cpu:0"

config = json.loads(os.environ.get("TF_CONFIG", "{}"))
addresses = config.get("cluster", {}).get("local", ["10.132.0.2:2222", "10.132.0.3:2222"])
cluster = tf.train.ClusterSpec({"local": addresses})
server = tf.distribute.Server(cluster, job_name="local", task_index=0)
# The other machine ( task:1 ) joins: see server.py


def matpow(M, n):  # noqa: N803 the question's names
    if n < 1:  # Abstract cases where n < 1
        return M
    return tf.matmul(M, matpow(M, n - 1))


G = tf.Graph()

with G.as_default():
    with tf.device("/job:local/task:1/cpu:0"):
        c1 = []
        tB = tf.compat.v1.placeholder(tf.float32, [L, L])  # noqa: N816 tensor B placeholder
        with tf.device("/job:local/task:1/" + unit):
            c1.append(matpow(tB, n))

    with tf.device("/job:local/task:0/cpu:0"):
        c2 = []
        tA = tf.compat.v1.placeholder(tf.float32, [L, L])  # noqa: N816 tensor A placeholder
        with tf.device("/job:local/task:0/" + unit):
            c2.append(matpow(tA, n))
        sum2 = tf.add_n(c1 + c2)

# ---------------------------------------------------------<SECTION-UNDER-TEST>
t1_2 = datetime.now()  # noqa: DTZ005 as in the question: only the difference counts
with tf.compat.v1.Session("grpc://" + addresses[0], graph=G) as sess:
    A = np.random.rand(L, L).astype("float32")
    B = np.random.rand(L, L).astype("float32")
    result = sess.run(sum2, {tA: A, tB: B})
t2_2 = datetime.now()  # noqa: DTZ005 see above
# ---------------------------------------------------------<SECTION-UNDER-TEST>

# ------------------------------------------------------------------
elapsed_us = int((time.perf_counter() - stopwatch) * 1e6)
# ------------------------------------------------------------------
print("Distributed Computation time: " + str(t2_2 - t1_2))
print(f"Distributed Experiment  took: {elapsed_us: > 16d} [us] End-2-End.")

# Not in the question: what was computed?
expected = sum(np.linalg.matrix_power(M.astype("float64"), n + 1) for M in (A, B))
error = np.linalg.norm(result - expected) / np.linalg.norm(expected)
print(
    f"Computed A^{n + 1} + B^{n + 1}, not A^{n} + B^{n}; relative error {error:.1e} against float64"
)
assert error < 1e-5, error

"""How fast does a tensor travel? Task 0 sends one to each other task, which adds 1 and sends it back.

    labctl run examples/transfer/roundtrip.py -- --mib 4 --repeat 20

The time is that of both ways together; the first trip, which also opens the connection, is not counted.
"""

import argparse
import json
import os
import statistics
import time

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=float, default=4.0, help="size of the tensor in MiB (4)")
    parser.add_argument("--repeat", type=int, default=20, help="trips that are timed (20)")
    options = parser.parse_args()
    count = int(options.mib * 2**20 / 4)

    addresses = json.loads(os.environ["TF_CONFIG"])["cluster"]["local"]
    cluster = tf.train.ClusterSpec({"local": addresses})
    server = tf.distribute.Server(cluster, job_name="local", task_index=0)

    graph = tf.Graph()
    checks = {}
    with graph.as_default():
        with v1.device("/job:local/task:0/cpu:0"):
            source = v1.get_variable("source", [count], initializer=v1.random_uniform_initializer())
        for task in range(1, len(addresses)):
            with v1.device(f"/job:local/task:{task}/cpu:0"):
                there = source + 1.0
            with v1.device("/job:local/task:0/cpu:0"):
                checks[task] = tf.reduce_max(tf.abs(there - source))
        initialise = v1.global_variables_initializer()

    with v1.Session(server.target, graph=graph) as session:
        session.run(initialise)
        for task, check in checks.items():
            session.run(check)
            times = []
            for _ in range(options.repeat):
                begin = time.perf_counter()
                difference = session.run(check)
                times.append(time.perf_counter() - begin)
                assert np.isclose(difference, 1.0, atol=1e-5), difference
            median = statistics.median(times)
            rate = 2 * options.mib / median
            print(f"task 0 to task {task} and back: {1e3 * median:.2f} ms, {rate:.0f} MiB/s")
    print(f"{len(checks)} edges, {options.mib:g} MiB each way, every element arrived")


if __name__ == "__main__":
    main()

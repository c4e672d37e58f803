"""Between-graph training: variables on task 0, one replica of the model for each worker, updates as they come.

    labctl run examples/parameter_server/train.py -- --steps 200

Each worker task k >= 1 has a graph and a session of its own, as in the parameter-server trainers of TensorFlow 1.
Graphs share the variables by their names. The lab's workers only run the join server, so the loops that would run
on the workers run here, one thread each, and send their gradients' work to task k.
"""

import argparse
import json
import os
import threading

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
FEATURES, BATCH = 20, 64


def build_replica(task):
    """Return graph, inputs, loss, training op and weights of the replica that computes on a task."""
    graph = tf.Graph()
    place = v1.train.replica_device_setter(
        ps_tasks=1, ps_device="/job:local", worker_device=f"/job:local/task:{task}"
    )
    with graph.as_default(), v1.device(place):
        x = v1.placeholder(tf.float32, [None, FEATURES])
        y = v1.placeholder(tf.float32, [None])
        weights = v1.get_variable("weights", [FEATURES], initializer=v1.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, weights) - y))
        train = v1.train.GradientDescentOptimizer(0.05).minimize(loss)
        initialise = v1.global_variables_initializer()
    return graph, (x, y), loss, train, weights, initialise


def work(task, target, truth, steps, losses):
    """The loop of one worker."""
    random = np.random.default_rng(task)
    graph, (x, y), loss, train, _, _ = build_replica(task)
    with v1.Session(target, graph=graph) as session:
        for _ in range(steps):
            batch = random.standard_normal((BATCH, FEATURES)).astype("float32")
            noise = 0.01 * random.standard_normal(BATCH)
            _, losses[task] = session.run([train, loss], {x: batch, y: batch @ truth + noise})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="of each worker (200)")
    steps = parser.parse_args().steps

    addresses = json.loads(os.environ["TF_CONFIG"])["cluster"]["local"]
    cluster = tf.train.ClusterSpec({"local": addresses})
    server = tf.distribute.Server(cluster, job_name="local", task_index=0)
    truth = np.random.default_rng(0).standard_normal(FEATURES)
    losses = {}

    graph, _, _, _, weights, initialise = build_replica(1)
    with v1.Session(server.target, graph=graph) as session:
        session.run(initialise)
        workers = [
            threading.Thread(target=work, args=(task, server.target, truth, steps, losses))
            for task in range(1, len(addresses))
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        learnt = session.run(weights)

    error = np.linalg.norm(learnt - truth) / np.linalg.norm(truth)
    for task, loss in sorted(losses.items()):
        print(f"task {task}: {steps} steps of {BATCH} samples, last loss {loss:.5f}")
    print(f"weights on task 0: relative error {error:.4f}")
    assert len(losses) == len(addresses) - 1, "a worker did not train"
    assert error < 0.02, error


if __name__ == "__main__":
    main()

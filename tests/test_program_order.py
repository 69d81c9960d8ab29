"""The operations of a request are copied into the graph, and do there what a call of their function would do."""

import numpy as np
import pytest
import tensorflow as tf

from distsgd.common.messages.ops import building, in_program_order


def called(build, *arguments):
    return tf.function(build, autograph=False)(*arguments)


@tf.custom_gradient
def squared(x):
    return x * x, lambda upstream: upstream * 5


def of_variables(x, v):
    """Read and write in turn: directly, in a branch, in a loop, and in a function with a gradient of its own."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = squared(x)
    seen = [v.read_value(), v.assign_add(tape.gradient(y, x)).read_value()]
    tf.cond(v[0] > 9, lambda: v.assign(v / 2).read_value(), lambda: v.assign(v - 1).read_value())
    step = lambda i, rows: (i + 1, rows.write(i, v.assign(v / 2 + x).read_value()))  # noqa: E731
    rows = tf.while_loop(lambda i, _: i < 3, step, [0, tf.TensorArray(tf.float32, 3, element_shape=[2])])[1].stack()
    return {"seen": seen, "rows": rows, "last": (called(lambda: v.assign(v * x).read_value()), v)}


def of_other_resources(x, v):
    """Use a queue of strings, a table, and Python."""
    waiting = tf.queue.FIFOQueue(-1, [tf.string], [[]])
    waiting.enqueue(tf.strings.as_string(tf.cast(x[0], tf.int32)))
    doubled = tf.numpy_function(lambda a: 2 * a, [x], tf.float32)
    waiting.enqueue("end")
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    table.insert(["a", "b"], tf.constant([1, 2], tf.int64))
    table.remove(tf.constant(["a"]))
    return waiting.size(), waiting.dequeue(), waiting.dequeue(), table.lookup(tf.constant(["a", "b"])), doubled + v


@pytest.mark.parametrize("build", [of_variables, of_other_resources])
def test_copied_operations_do_what_a_call_of_their_function_does(build):
    found = []
    for way in (called, in_program_order):
        with building(tf.Graph()):
            x, v = tf.compat.v1.placeholder(tf.float32, [2]), tf.Variable([1.0, 2.0])
            results = way(lambda x, v=v: build(x, v), x)
            with tf.compat.v1.Session() as session:
                session.run(v.initializer)
                found.append([session.run(results, {x: [3.0, k]}) for k in range(4)])
    tf.nest.assert_same_structure(*found)
    for one, other in zip(*map(tf.nest.flatten, found), strict=True):
        assert np.array_equal(one, other)


def test_copied_operations_wait_for_those_of_the_graph_for_which_a_call_would_wait():
    """An operation of the graph that the function names, and those around the call."""
    for inside in (True, False):
        with building(tf.Graph()):
            v = tf.Variable(1.0)
            written = v.assign(tf.numpy_function(lambda: np.float32(7), [], tf.float32)).op
            wait = lambda asked, written=written: tf.control_dependencies([written] if asked else [])  # noqa: E731

            def build(v=v, inside=inside, wait=wait):
                with wait(inside):
                    return v.assign_add(1.0).read_value()

            with wait(not inside):
                result = in_program_order(build)
            with tf.compat.v1.Session() as session:
                session.run(v.initializer)
                assert session.run(result) == 8


def test_operations_placed_with_one_that_is_not_copied_have_its_device():
    """TensorFlow places the reads of an iterator with the data set, which is outside of the function."""
    graph = tf.Graph()
    with building(graph):
        with tf.device("/device:CPU:0"):
            iterator = tf.compat.v1.data.make_initializable_iterator(tf.data.Dataset.range(9).repeat())

        def build():
            with tf.device("/device:CPU:1"):
                near = tf.identity(4, name="near")
                with tf.compat.v1.colocate_with(iterator.initializer):
                    tf.identity(5, name="outside")
            with tf.compat.v1.colocate_with(near.op):
                tf.identity(6, name="inside")
            return iterator.get_next(), iterator.get_next()

        found = in_program_order(build)
        devices = [graph.get_operation_by_name(f"in_order/{name}").device[-1] for name in ("near", "outside", "inside")]
        with tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(device_count={"CPU": 2})) as session:
            session.run(iterator.initializer)
            assert (devices, session.run(found)) == (["1", "0", "1"], (0, 1))


def test_a_session_that_is_called_while_a_request_is_built_takes_all_of_it_later():
    """On threads all tasks call one session, and a request is built when a task first makes it."""
    graph, expected = tf.Graph(), 0.0
    with building(graph):
        variable, other = tf.Variable(0.0), tf.constant(1.0)
    session = tf.compat.v1.Session(graph=graph)

    def build():
        for i in range(40):
            variable.assign(variable / 2 + i)
            session.run(other)
        return variable.read_value()

    with building(graph):
        last = in_program_order(build)
    for i in range(40):
        expected = expected / 2 + i
    for _ in range(5):
        session.run(variable.initializer)
        assert session.run(last) == pytest.approx(expected)

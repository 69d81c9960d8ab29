"""Two towers that learn to match pairs by a contrastive loss, trained by four workers in `model.fit`."""

from distsgd import EASGD, Optimizer, SyncSGD

import keras
import numpy as np

rng = np.random.default_rng(0)
causes = rng.normal(size=(4096, 8))  # each pair has a common cause, which each tower sees in a way of its own
views = [np.tanh(causes @ rng.normal(size=(8, 32))) + 0.1 * rng.normal(size=(4096, 32)) for _ in range(2)]
train, test = [view[:3840] for view in views], [view[3840:] for view in views]


def tower():
    """Return a network that maps a view to a vector of length 1."""
    return keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(16), keras.layers.UnitNormalization()])


class TwoTowers(keras.Model):
    """Two towers, whose outputs should be near each other for the two views of a pair alone."""

    def __init__(self):
        super().__init__()
        self.left, self.right = tower(), tower()

    def call(self, views):
        """Return the similarity of each view on the left with each on the right."""
        return 10 * self.left(views[0]) @ keras.ops.transpose(self.right(views[1]))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Return the cross-entropy of finding the right one in the batch."""
        return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(np.arange(64), y_pred, from_logits=True))


for scheme in SyncSGD(learning_rate=0.5), EASGD(learning_rate=0.5, communication_period=5):
    keras.utils.set_random_seed(0)
    model, optimizer = TwoTowers(), Optimizer(scheme, workers=4, order="random")
    model.compile(optimizer=optimizer)
    model.fit(train, batch_size=64, epochs=10, verbose=0, callbacks=[optimizer.callback()])
    found = model.predict(test, batch_size=256, verbose=0).argmax(1) == np.arange(256)
    print(f"{scheme.name}: finds the right one of 256 for {np.mean(found):.0%} of the test pairs")

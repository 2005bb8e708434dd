"""Changes of the batches that tests train on."""

import dataclasses

from scalerl.training.learner.batch import TrainBatch


def change(batch, **values):
    """Return a batch with other values of its fields, or of those of its rollouts."""
    of_batch = {field.name for field in dataclasses.fields(TrainBatch)}
    of_rollouts = {name: value for name, value in values.items() if name not in of_batch}
    rollouts = dataclasses.replace(batch.rollouts, **of_rollouts)
    return dataclasses.replace(batch, **{"rollouts": rollouts} | {n: values[n] for n in values.keys() & of_batch})

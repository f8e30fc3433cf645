"""Ranking 100 films for each of 6,040 users: an evaluation of a recommender as for MovieLens-1M.

The pairs are random ones; numbers and sizes are those of the data set.
"""

import torch
import torch.nn.functional as F

from pathspace.bench import Measurement, interleaved
from pathspace.experiments import models
from pathspace.experiments.data import Interactions
from pathspace.experiments.training import Ranking

USERS, ITEMS, NEGATIVES, GOAL = 6_040, 3_706, 99, 2.0
FACTORS = (8, 16, 32, 64)


def pairs() -> Interactions:
    draw = torch.Generator().manual_seed(0)
    return Interactions(
        users=torch.arange(USERS),
        items=torch.randint(ITEMS, (USERS,), generator=draw),
        test_items=torch.randint(ITEMS, (USERS,), generator=draw),
        test_negatives=torch.randint(ITEMS, (USERS, NEGATIVES), generator=draw),
        user_ids=torch.arange(USERS),
        item_ids=torch.arange(ITEMS),
    )


def measure(repeats: int) -> list[Measurement]:
    task = Ranking(pairs(), 4096)
    loss = F.binary_cross_entropy_with_logits
    tasks = {}
    for factors in FACTORS:
        model = models.ncf(factors, users=USERS, items=ITEMS).eval()
        tasks[factors] = lambda model=model: task.evaluate(model, loss, lambda: None)
    seconds = interleaved(tasks, max(2, repeats // 2))
    return [
        Measurement(f"{factors} factors: all users", seconds[factors], "s", GOAL)
        for factors in FACTORS
    ]

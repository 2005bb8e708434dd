"""Many runs compared by their curves: plans, execution, allocation of the budget, results. Does not import torch."""

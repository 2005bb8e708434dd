"""Many runs compared by their curves: plans, execution, allocation of the budget. Does not import torch."""

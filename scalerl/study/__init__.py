"""Many runs compared by their curves: plans, execution, allocation of the budget, results. It loads no torch itself."""

"""Programs of agents: one process for each rollout, which talks to the policy over an endpoint."""

"""`scalerl eval`: evaluation of a model on suites, with mean@k, pass@k and majority votes."""

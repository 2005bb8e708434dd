"""The torch engine: continuous batching in this process, on CPU or one GPU."""

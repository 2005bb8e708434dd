"""Code that runs inside a sandbox. Only this directory of the project and the standard library are available there."""

"""The version of the package, for readers that must not import its top level."""

VERSION = "0.1.0"

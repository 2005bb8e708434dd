"""Text, figures and pages about fitted curves. Does not import torch; imports matplotlib only to draw."""

"""For whoever has a log: from what a trainer wrote to a curve, a forecast and a page. Nothing here imports training."""

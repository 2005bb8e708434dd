import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: spinning threads make the process tests crawl
sys.path.insert(0, str(Path(__file__).parent))  # for tiny_models and the like
